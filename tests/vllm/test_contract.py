"""The contract with vLLM, row by row, and what happens when a row is broken."""

import pytest

from kvply.errors import ContractError
from kvply.vllm.contract import CONTRACT, TESTED_VERSIONS, Symbol, check, installed_version, verify


@pytest.mark.parametrize("symbol", CONTRACT, ids=lambda symbol: symbol.path)
def test_the_installed_vllm_has_it(symbol: Symbol) -> None:
    assert check(symbol) is None


def test_the_installed_version_is_one_we_claim() -> None:
    assert installed_version() in TESTED_VERSIONS


@pytest.mark.parametrize(
    ("symbol", "problem"),
    [
        (Symbol("vllm.no_such_module:x"), "is missing"),
        (Symbol("vllm.config:NoSuchConfig"), "is missing"),
        (Symbol("vllm.config:VllmConfig", fields=("model_config", "no_such_field")), "has no no_such_field"),
        (Symbol("vllm.v1.worker.gpu_worker:Worker.execute_model", parameters=("self", "batch")), "expected"),
    ],
)
def test_drift_is_named(symbol: Symbol, problem: str) -> None:
    assert problem in str(check(symbol))
    with pytest.raises(ContractError, match=problem) as refusal:
        verify([*CONTRACT[:2], symbol])
    assert symbol.path in str(refusal.value)
    assert installed_version() in str(refusal.value)
