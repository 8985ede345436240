"""Four ranks, three layers: one rank owns nothing and still takes part."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvply.testing.tiny_models import write_checkpoint
from support.engines import EngineSetup
from support.parity import RecordProperty, assert_parity, assert_sensitive, note, outcome

SCENARIOS = ("block_edges", "mixed_batches", "aborts")


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory) -> EngineSetup:
    directory: Path = tmp_path_factory.mktemp("checkpoints") / "v3-3-layers"
    write_checkpoint(directory, "v3", num_layers=3, dtype="float32")
    return EngineSetup(
        name="tp4-off",
        model=str(directory),
        num_ranks=4,
        scenarios=(*SCENARIOS, "sensitivity_reference"),
        engine={
            "tensor_parallel_size": 4,
            "max_model_len": 512,
            "max_num_seqs": 4,
            "num_gpu_blocks_override": 100,
            "kv_cache_memory_bytes": 64 << 20,
        },
    )


@pytest.fixture(scope="module")
def on(off: EngineSetup) -> EngineSetup:
    return replace(off, name="tp4-on", scenarios=(*SCENARIOS, "corrupted_layers"), kvpp={"enable_kvpp": "True"})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_equals_off(off: EngineSetup, on: EngineSetup, scenario: str, record_property: RecordProperty) -> None:
    note(record_property, "Model Runner V1, TP4, v3 with 3 layers (an owner without layers)", scenario)
    assert_parity(outcome(off), outcome(on), scenario)


def test_spoiled_history_of_any_layer_is_noticed(off: EngineSetup, on: EngineSetup) -> None:
    assert_sensitive(outcome(off), outcome(on))


def test_the_last_rank_owns_no_layer(on: EngineSetup) -> None:
    assert [rank["owned_layers"] for rank in outcome(on)["stats"]] == [[0], [1], [2], []]
