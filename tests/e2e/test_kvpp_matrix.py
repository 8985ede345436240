"""KVPP on == off for every supported model, runner and layout, on the CPU reference platform in bf16.

One row is one pair of engines. `docs/support.md` is made from this table and from what the tests said.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvply.testing.tiny_models import TinyKind, write_checkpoint
from support.engines import EngineSetup
from support.parity import RecordProperty, assert_parity, assert_sensitive, note, outcome

FULL = ("block_edges", "shared_prefixes", "mixed_batches", "prefix_aba", "long_prompt", "aborts", "preemption")
SHORT = ("shared_prefixes", "mixed_batches", "prefix_aba")

V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """tp, pp, pcp: degrees. layers: pipeline split. mtp: draft steps. scenarios: compared on and off."""

    name: str
    kind: TinyKind
    tp: int = 2
    pp: int = 1
    pcp: int = 1
    layers: str = ""
    mtp: int = 0
    runner: str = "V1"
    is_async: bool = False
    has_expert_parallelism: bool = False
    scenarios: tuple[str, ...] = SHORT

    @property
    def title(self) -> str:
        """The row in words, for docs/support.md."""
        degrees = (("TP", self.tp), ("PP", self.pp), ("PCP", self.pcp))
        layout = " x ".join(f"{name}{size}" for name, size in degrees if size > 1)
        extras = [
            f"stages of {self.layers} layers" if self.layers else "",
            "EP" if self.has_expert_parallelism else "",
            f"MTP {self.mtp}" if self.mtp else "",
            "async scheduling" if self.is_async else "",
        ]
        return ", ".join([f"Model Runner {self.runner}", layout, self.kind, *filter(None, extras)])

    @property
    def num_ranks(self) -> int:
        return self.tp * self.pp * self.pcp


ROWS = [
    Row(name="v1-tp2-v3", kind="v3", scenarios=FULL),
    Row(name="v1-tp2-v32", kind="v32", scenarios=FULL),
    Row(name="v1-tp2-glm52", kind="glm52", scenarios=FULL),
    Row(name="v1-tp2-pp2-v3", kind="v3", pp=2, layers="4,2"),
    Row(name="v1-tp2-pp2-glm52", kind="glm52", pp=2, layers="6,2"),
    Row(name="v1-tp2-ep-v3", kind="v3", has_expert_parallelism=True),
    Row(name="v1-tp2-mtp1-v3", kind="v3", mtp=1, scenarios=("drafts", "mixed_batches")),
    Row(name="v1-tp2-mtp1-v32", kind="v32", mtp=1, scenarios=("drafts", "mixed_batches")),
    Row(name="v1-tp2-mtp2-glm52", kind="glm52", mtp=2, scenarios=("drafts", "mixed_batches")),
    Row(name="v2-tp2-async-v3", kind="v3", runner="V2", is_async=True, scenarios=(*SHORT, "delayed_rank")),
    Row(
        name="v2-tp2-async-mtp1-v32",
        kind="v32",
        runner="V2",
        is_async=True,
        mtp=1,
        scenarios=("drafts", "delayed_rank"),
    ),
    Row(name="v2-tp2-async-glm52", kind="glm52", runner="V2", is_async=True),
    Row(name="v2-tp2-pp2-async-v3", kind="v3", runner="V2", pp=2, layers="4,2", is_async=True),
    Row(name="v2-pcp2-v3", kind="v3", runner="V2", tp=1, pcp=2),
    Row(name="v2-tp2-pcp2-v3", kind="v3", runner="V2", pcp=2),
    Row(name="v2-pcp2-v32", kind="v32", runner="V2", tp=1, pcp=2, scenarios=("shared_prefixes",)),
    Row(name="v1-tp2-async-v3", kind="v3", is_async=True, scenarios=("mixed_batches", "delayed_rank")),
]
CASES = [pytest.param(row, scenario, id=f"{row.name}-{scenario}") for row in ROWS for scenario in row.scenarios]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def setups(row: Row, checkpoints: Path) -> tuple[EngineSetup, EngineSetup]:
    """(off, on) engines of a row."""
    model = checkpoints / f"{row.kind}-{row.mtp}"
    if not model.exists():
        write_checkpoint(model, row.kind, num_mtp_layers=min(row.mtp, 1))
    engine: dict[str, object] = {
        "tensor_parallel_size": row.tp,
        "pipeline_parallel_size": row.pp,
        "prefill_context_parallel_size": row.pcp,
        "enable_expert_parallel": row.has_expert_parallelism,
        "async_scheduling": row.is_async,
        "max_model_len": 512,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 128,
        "block_size": 16,
        "num_gpu_blocks_override": 61,
        "kv_cache_memory_bytes": 64 << 20,
    }
    if row.mtp:
        engine["speculative_config"] = {"method": "mtp", "num_speculative_tokens": row.mtp}
    env = {"KVPLY_CPU_REFERENCE": "1", **(V2 if row.runner == "V2" else {})}
    if row.layers:
        env["VLLM_PP_LAYER_PARTITION"] = row.layers
    off = EngineSetup(
        name=f"{row.name}-off",
        model=str(model),
        num_ranks=row.num_ranks,
        scenarios=(*row.scenarios, "sensitivity_reference"),
        engine=engine,
        env=env,
    )
    scenarios = (*row.scenarios, "corrupted_layers")
    return off, replace(off, name=f"{row.name}-on", scenarios=scenarios, kvpp={"enable_kvpp": True})


@pytest.mark.parametrize(("row", "scenario"), CASES)
def test_on_equals_off(row: Row, scenario: str, checkpoints: Path, record_property: RecordProperty) -> None:
    note(record_property, row.title, scenario)
    off, on = setups(row, checkpoints)
    assert_parity(outcome(off), outcome(on), scenario)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_spoiled_history_of_any_layer_is_noticed(
    row: Row, checkpoints: Path, record_property: RecordProperty
) -> None:
    note(record_property, row.title, "spoiled history is noticed")
    off, on = setups(row, checkpoints)
    assert_sensitive(outcome(off), outcome(on))


@pytest.mark.parametrize("row", [row for row in ROWS if row.mtp], ids=lambda row: row.name)
def test_drafts_were_accepted(row: Row, checkpoints: Path) -> None:
    _, on = setups(row, checkpoints)
    assert outcome(on)["scenarios"]["drafts"]["num_accepted"] > 0


@pytest.mark.parametrize("row", [r for r in ROWS if "delayed_rank" in r.scenarios], ids=lambda row: row.name)
def test_the_rank_was_delayed(row: Row, checkpoints: Path) -> None:
    _, on = setups(row, checkpoints)
    assert outcome(on)["scenarios"]["delayed_rank"]["num_delays"] > 0


def test_long_prompts_hits_and_preemption_happened(checkpoints: Path) -> None:
    for row in ROWS:
        if row.scenarios == FULL:
            scenarios = outcome(setups(row, checkpoints)[1])["scenarios"]
            assert scenarios["prefix_aba"]["num_cached_tokens"] > 0
            assert scenarios["long_prompt"]["is_chunked"]
            assert scenarios["preemption"]["num_preemptions"] > 0
