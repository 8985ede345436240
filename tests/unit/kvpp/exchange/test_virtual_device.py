"""The real runtime and stream exchange on the virtual device, and the checkers on traces made by hand."""

import dataclasses

import pytest

from kvply.config import PayloadKind
from kvply.kvpp.payload import Ranges
from kvply.kvpp.storage import StorageLayout
from kvply.layout.arena import Region
from kvply.testing.virtual_device import (
    Device,
    RandomWorkload,
    Recording,
    Rule,
    ScriptWriter,
    StepPlan,
    check,
    play,
    unequal_scene,
)
from kvply.testing.virtual_device.cells import cells_of
from kvply.testing.virtual_device.checker import check_order
from kvply.testing.virtual_device.explorer import Explorer
from kvply.testing.virtual_device.trace import Broadcast, Move, Position, Record, Stream, Trace, Wait

FULL, ACTIVE = PayloadKind.FULL, PayloadKind.ACTIVE
SEED = 418


def steps_of() -> tuple[StepPlan, ...]:
    return RandomWorkload(SEED, num_blocks=16, block_size_tokens=2).steps(5)


def record(num_ranks: int, num_layers: int, payload: PayloadKind, *, has_all_reduce: bool = False) -> Recording:
    scene = unequal_scene(num_ranks, num_layers, payload)
    scene = dataclasses.replace(scene, has_all_reduce=has_all_reduce)
    return play(scene, ScriptWriter(scene).write(steps_of()))


@pytest.mark.parametrize("payload", [FULL, ACTIVE])
@pytest.mark.parametrize("num_layers", [1, 2, 3, 6])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_the_real_runtime_is_in_order(num_ranks: int, num_layers: int, payload: PayloadKind) -> None:
    recording = record(num_ranks, num_layers, payload)
    assert [str(violation) for violation in check(recording, range(4))] == []
    num_with_history = sum(step.history.needs_broadcast for step in recording.script)
    assert num_with_history > 0
    for rank, counters in enumerate(recording.counters):
        broadcasts = recording.trace.collectives(rank, Stream.TRANSFER)
        assert counters.total.broadcasts == num_with_history * num_layers
        assert counters.total.bytes_sent == sum(op.action.num_bytes for op in broadcasts)


def test_the_play_has_every_kind_of_step() -> None:
    """What the tests above and the list of mutations rely on."""
    recording, steps = record(3, 6, ACTIVE), steps_of()
    assert any(not step.history.needs_broadcast for step in recording.script)
    assert any(step.finished_ids for step in steps)
    assert any(step.copies for step in steps)
    assert any(step.zeroed for step in steps)
    assert any(step.cache_written_before_forward and step.history.needs_broadcast for step in recording.script)
    assert any(_late_hits(step) for step in steps)


def _late_hits(step: StepPlan) -> set[int]:
    """Blocks that one request computes in the step and another has as history already (blocks of two tokens)."""
    computed, new = set[int](), set[int]()
    for work in step.work:
        stop = work.num_computed_tokens + work.num_new_tokens
        computed.update(work.block_ids[: work.num_computed_tokens // 2])
        new.update(work.block_ids[work.num_computed_tokens // 2 : -(-stop // 2)])
    return computed & new


def test_batches_are_packed_and_sent_in_place() -> None:
    recording = record(2, 6, ACTIVE)
    transfers = recording.trace.accesses(1, Stream.TRANSFER)
    staging = recording.layouts[1].staging
    into_staging = [op for op in transfers if isinstance(op.action, Broadcast) and _starts_in(op.writes, staging)]
    in_place = [op for op in transfers if isinstance(op.action, Broadcast) and op.writes and op not in into_staging]
    unpacked = [op for op in transfers if isinstance(op.action, Move) and len(op.writes) > 1]
    assert into_staging
    assert in_place
    assert unpacked


def _starts_in(ranges: Ranges, region: Region) -> bool:
    return any(region.offset_bytes <= start < region.end_bytes for start, _ in ranges)


@pytest.mark.parametrize("payload", [FULL, ACTIVE])
def test_collectives_without_launch_order_can_deadlock(payload: PayloadKind) -> None:
    """A device with room for one waiting collective: broadcast and all-reduce wait for each other's peers."""
    recording = record(3, 4, payload, has_all_reduce=True)
    unordered = check(recording, range(10), Device(num_resident=1))
    assert {violation.rule for violation in unordered} == {Rule.NO_DEADLOCK}
    assert check(recording, range(10), Device(num_resident=1, is_launch_ordered=True)) == []
    assert check(recording, range(10), Device(num_resident=2)) == []


def test_waits_in_a_circle_are_a_deadlock() -> None:
    trace = Trace(1)
    trace.add(0, Stream.COMPUTE, Wait(Position(0, Stream.TRANSFER, 1)))
    trace.add(0, Stream.COMPUTE, Record())
    trace.add(0, Stream.TRANSFER, Wait(Position(0, Stream.COMPUTE, 1)))
    trace.add(0, Stream.TRANSFER, Record())
    scene = unequal_scene(1, 1, FULL)
    layout = StorageLayout(scene.plan, 0, scene.num_blocks, has_staging=True)
    recording = Recording(scene, (), (layout,), (), trace)
    assert {v.rule for v in check_order(recording, [])} == {Rule.NO_DEADLOCK}
    assert {v.rule for v in Explorer(recording, []).run(seed=0)} == {Rule.NO_DEADLOCK}


def test_an_interval_that_cuts_a_cell_is_refused() -> None:
    assert cells_of(((8, 24), (0, 8)), 8).tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="cells of 8 bytes"):
        cells_of(((0, 12),), 8)
