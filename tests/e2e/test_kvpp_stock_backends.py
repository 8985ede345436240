"""KVPP on == off on stock vLLM for CPU, with whatever MLA backend this CPU gets."""

import pytest

from kvply.testing import recall
from support.engines import HAS_AMX, EngineSetup
from support.parity import PARITY_SCENARIOS, RecordProperty, assert_parity, assert_sensitive, note, outcome

ENGINE: dict[str, object] = {
    "tensor_parallel_size": 2,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 1024,
    # 128-token blocks with AMX, 16 without: about 2,000 tokens either way, too few for `preemption`.
    "num_gpu_blocks_override": 17 if HAS_AMX else 125,
    "kv_cache_memory_bytes": 64 << 20,
}
MODEL = str(recall.MODEL_DIR)

TITLE = f"Model Runner V1, TP2, recall model, stock {'AMX_MLA' if HAS_AMX else 'CPU_MLA'} bf16"

OFF = EngineSetup(
    name="stock-off",
    model=MODEL,
    num_ranks=2,
    scenarios=(*PARITY_SCENARIOS, "recall_answers", "sensitivity_reference"),
    engine=ENGINE,
)
ON = EngineSetup(
    name="stock-on",
    model=MODEL,
    num_ranks=2,
    scenarios=(*PARITY_SCENARIOS, "recall_answers", "corrupted_layers"),
    engine=ENGINE,
    kvpp={"enable_kvpp": True},
)

needs_amx = pytest.mark.skipif(
    not HAS_AMX, reason="without AMX vLLM picks CPU_MLA, which has no chunked prefill and no prefix caching"
)


@pytest.mark.parametrize("scenario", [*PARITY_SCENARIOS, "recall_answers"])
def test_on_equals_off(scenario: str, record_property: RecordProperty) -> None:
    note(record_property, TITLE, scenario)
    assert_parity(outcome(OFF), outcome(ON), scenario)


def test_spoiled_history_of_any_layer_is_noticed() -> None:
    assert_sensitive(outcome(OFF), outcome(ON))


def test_facts_are_recalled() -> None:
    answers = outcome(ON)["scenarios"]["recall_answers"]
    assert answers["num_right"] == answers["num_asked"]


def test_preemption_happened() -> None:
    assert outcome(ON)["scenarios"]["preemption"]["num_preemptions"] > 0


@needs_amx
def test_prefix_hit_happened() -> None:
    assert outcome(ON)["scenarios"]["prefix_aba"]["num_cached_tokens"] > 0


def test_each_rank_says_what_it_owns() -> None:
    log = outcome(ON)["log"]
    assert "KVPP rank 0/2 stage 0: owns layers 0-3 of 8" in log
    assert "KVPP rank 1/2 stage 0: owns layers 4-7 of 8" in log


def test_nothing_of_kvpp_runs_when_it_is_off() -> None:
    assert "KVPP" not in outcome(OFF)["log"]
