"""Real vLLM engines in processes of their own: described as data, run once, results as data."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

TESTS = Path(__file__).resolve().parent.parent
HOST = TESTS / "support" / "engine_host.py"

HAS_AMX = torch.cpu._is_amx_tile_supported()

# Facts that make CPU runs comparable: the engine core lives in the test's process (fixed batching), no
# just-in-time compilation, one core per rank.
BASE_ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class EngineSetup:
    """One engine and the scenarios it runs, in order.

    model: checkpoint directory. num_ranks: TP x PP x PCP workers.
    engine: keyword arguments of vllm.LLM. kvpp: `additional_config`, empty for stock vLLM.
    """

    name: str
    model: str
    num_ranks: int
    scenarios: tuple[str, ...]
    engine: dict[str, object]
    kvpp: dict[str, object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def environment(num_ranks: int, overrides: dict[str, str]) -> dict[str, str]:
    """The caller's environment less vLLM's and kvply's settings, with those of the tests, one core per rank."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "KVPLY_"))}
    cores = "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(num_ranks))
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**env, **BASE_ENV, "VLLM_CPU_OMP_THREADS_BIND": cores, "PYTHONPATH": path, **overrides}


def run_engine(setup: EngineSetup, timeout_s: float = 280) -> dict[str, object]:
    """Start the engine, run its scenarios, stop it; returns what engine_host.py wrote.

    Raises AssertionError with the end of the log if the engine fails; leaves no process behind.
    """
    with tempfile.TemporaryDirectory(prefix="kvply-e2e-") as directory:
        plan, result, log = (Path(directory) / name for name in ("plan.json", "result.json", "log.txt"))
        plan.write_text(json.dumps(asdict(setup)))
        with log.open("w") as sink:
            process = subprocess.Popen(
                [sys.executable, str(HOST), str(plan), str(result)],
                env=environment(setup.num_ranks, setup.env),
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                kill_session(process)
        text = log.read_text(errors="replace")
        assert code == 0, f"engine {setup.name} ended with {code}:\n{_tail(text)}"
        outcome: dict[str, object] = json.loads(result.read_text())
        outcome["log"] = text
        return outcome


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """End a process started with `start_new_session` and everything it started. Idempotent."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _tail(text: str, num_chars: int = 6000) -> str:
    return text[-num_chars:]
