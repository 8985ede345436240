"""Every payload over every transport gives the same tokens and logprobs as stock vLLM.

On the CPU reference platform, so that chunked prefill and prefix hits are part of it on any CPU. `auto` with
`shm` is what users get; the others are compared with the same engine without KVPP.
"""

from dataclasses import replace

import pytest

from kvply.testing import recall
from support.engines import EngineSetup
from support.parity import PARITY_SCENARIOS, RecordProperty, assert_parity, assert_sensitive, note, outcome

OFF = EngineSetup(
    name="reference-off",
    model=str(recall.MODEL_DIR),
    num_ranks=2,
    scenarios=(*PARITY_SCENARIOS, "recall_answers", "sensitivity_reference"),
    engine={
        "tensor_parallel_size": 2,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "block_size": 16,
        "async_scheduling": False,
        "num_gpu_blocks_override": 125,
        "kv_cache_memory_bytes": 64 << 20,
    },
    env={"KVPLY_CPU_REFERENCE": "1"},
)


def variant(payload: str, transport: str) -> EngineSetup:
    return replace(
        OFF,
        name=f"reference-{payload}-{transport}",
        scenarios=(*PARITY_SCENARIOS, "recall_answers", "corrupted_layers"),
        kvpp={"enable_kvpp": True, "kvpp_payload": payload, "kvpp_transport": transport},
    )


AUTO = variant("auto", "auto")
VARIANTS = [
    AUTO,
    variant("full", "shm"),
    variant("active", "collective"),
    variant("full", "collective"),
]


@pytest.mark.parametrize("scenario", [*PARITY_SCENARIOS, "recall_answers"])
@pytest.mark.parametrize("setup", VARIANTS, ids=lambda setup: setup.name)
def test_on_equals_off(setup: EngineSetup, scenario: str, record_property: RecordProperty) -> None:
    payload, transport = setup.kvpp["kvpp_payload"], setup.kvpp["kvpp_transport"]
    note(record_property, f"Model Runner V1, TP2, recall model, payload {payload}, transport {transport}", scenario)
    assert_parity(outcome(OFF), outcome(setup), scenario)


@pytest.mark.parametrize("setup", VARIANTS, ids=lambda setup: setup.name)
def test_spoiled_history_of_any_layer_is_noticed(setup: EngineSetup) -> None:
    assert_sensitive(outcome(OFF), outcome(setup))


def test_scenarios_did_what_they_are_named_for() -> None:
    scenarios = outcome(AUTO)["scenarios"]
    assert scenarios["prefix_aba"]["num_cached_tokens"] > 0
    assert scenarios["long_prompt"]["is_chunked"]
    assert scenarios["preemption"]["num_preemptions"] > 0
    assert scenarios["recall_answers"]["num_right"] == scenarios["recall_answers"]["num_asked"]


def test_active_sends_less_than_full() -> None:
    active, full = (
        outcome(variant(payload, "collective"))["scenarios"]["block_edges"]["bytes_sent"]
        for payload in ("active", "full")
    )
    assert 0 < active < full


def test_auto_takes_shared_memory_on_one_host() -> None:
    assert {rank["transport"] for rank in outcome(AUTO)["stats"]} == {"shm"}
