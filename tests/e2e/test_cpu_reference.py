"""The CPU reference platform against the stock backend that any CPU has, in fp32: equal but for rounding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvply.testing.tiny_models import write_checkpoint
from support.engines import EngineSetup
from support.parity import outcome

# Observed 1.4e-5; the two sum attention in different orders.
MAX_LOGPROB_DIFFERENCE = 1e-4


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> EngineSetup:
    directory: Path = tmp_path_factory.mktemp("checkpoints") / "v3"
    write_checkpoint(directory, "v3", dtype="float32")
    return EngineSetup(
        name="cpu-mla",
        model=str(directory),
        num_ranks=1,
        scenarios=("block_edges", "mixed_batches"),
        engine={
            "dtype": "float32",
            "max_model_len": 512,
            "max_num_batched_tokens": 512,
            "max_num_seqs": 4,
            "block_size": 16,
            "async_scheduling": False,
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": 64 << 20,
            "attention_config": {"backend": "CPU_MLA"},
        },
    )


def compared(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Largest difference of a logprob; tokens have to be the same."""
    assert found.keys() == expected.keys()
    worst = 0.0
    for key in expected:
        assert found[key]["tokens"] == expected[key]["tokens"]
        pairs = zip(found[key]["logprobs"], expected[key]["logprobs"], strict=True)
        worst = max([worst, *(abs(one - other) for one, other in pairs)])
    return worst


@pytest.mark.parametrize("scenario", ["block_edges", "mixed_batches"])
def test_dense_equals_cpu_mla_but_for_rounding(stock: EngineSetup, scenario: str) -> None:
    engine = {key: value for key, value in stock.engine.items() if key != "attention_config"}
    reference = replace(stock, name="cpu-reference", engine=engine, env={"KVPLY_CPU_REFERENCE": "1"})
    ours, theirs = outcome(reference), outcome(stock)
    assert "CPU reference platform" in ours["log"]
    assert "CPU reference platform" not in theirs["log"]
    difference = compared(ours["scenarios"][scenario]["requests"], theirs["scenarios"][scenario]["requests"])
    assert difference < MAX_LOGPROB_DIFFERENCE
