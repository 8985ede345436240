"""What a user meets at start: refusals with numbers, a warning where there is nothing to share."""

import subprocess
from dataclasses import replace

import pytest

from kvply.testing import recall
from support.engines import EngineSetup, run_engine
from support.server import SERVE

SETUP = EngineSetup(
    name="startup",
    model=str(recall.MODEL_DIR),
    num_ranks=2,
    scenarios=(),
    engine={"tensor_parallel_size": 2, "max_model_len": 512, "kv_cache_memory_bytes": 16 << 20},
    kvpp={"enable_kvpp": True},
)


def test_an_override_that_does_not_fit_is_refused_with_numbers() -> None:
    too_many = replace(SETUP, engine={**SETUP.engine, "num_gpu_blocks_override": 400})
    with pytest.raises(AssertionError, match=r"400 blocks .* take \d+ bytes, available are 16777216; at most \d+"):
        run_engine(too_many)


def test_auto_fit_plans_with_the_larger_cache() -> None:
    engine = {**SETUP.engine, "max_model_len": -1, "kv_cache_memory_bytes": 4 << 20}
    outcome = run_engine(replace(SETUP, engine=engine))
    stats = outcome["stats"][0]
    assert outcome["num_blocks"] == stats["num_blocks"]
    assert stats["num_blocks"] > stats["replicated_blocks"]
    assert stats["physical_bytes"] <= stats["available_bytes"] == 4 << 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--additional-config", '{"enable_kvpp": true}'], "add --enforce-eager"),
        (["--enforce-eager", "--additional-config", '{"enable_kvp": 1, "kvpp_payloud": 1}'], "kvpp_payload"),
    ],
)
def test_the_command_line_refuses_before_a_worker_starts(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [*SERVE, str(recall.MODEL_DIR), "--tensor-parallel-size", "2", "--host", "127.0.0.1", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
