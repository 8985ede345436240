"""Bookkeeping costs what changed in a step: told by what is rebuilt, not by clocks."""

import numpy as np
import pytest

from kvply.config import PayloadKind
from kvply.kvpp.blocks import BlockRuns
from kvply.kvpp.history import HistoryTracker, ScheduledRequest, StepHistory
from kvply.kvpp.payload import PayloadPlanner, active_payload, merge_ranges
from kvply.layout.bundle import Bundle, Component


def test_runs_are_the_same_object_until_the_set_changes() -> None:
    blocks = BlockRuns(1000)
    blocks.add([1, 3, 5])
    runs = blocks.runs
    blocks.add([3])
    blocks.remove([3])
    assert blocks.runs is runs
    blocks.remove([3])
    assert blocks.runs == ((1, 2), (5, 6))
    blocks.add([3])
    assert blocks.runs == runs
    blocks.add(range(500, 900))
    assert blocks.runs == (*runs, (500, 900))
    blocks.remove(range(500, 900))
    assert blocks.runs == runs


def test_a_decode_step_inside_a_block_rebuilds_nothing() -> None:
    tracker = HistoryTracker(num_blocks=64, block_size_tokens=16)
    first = tracker.advance([ScheduledRequest("a", [4, 6], 20, True)], ())
    second = tracker.advance([ScheduledRequest("a", [], 21, False)], ())
    assert second.runs is first.runs
    bundle = Bundle.of(0, [Component("kv", 32)])
    planner = PayloadPlanner(PayloadKind.ACTIVE, 64)
    planner.open(first)
    payload = planner.payload(bundle)
    planner.open(second)
    assert planner.payload(bundle) is payload


@pytest.mark.parametrize("num_runs", [255, 256, 257, 1000])
def test_many_runs_are_merged_like_few(num_runs: int) -> None:
    random = np.random.default_rng(num_runs)
    edges = np.cumsum(random.integers(1, 9, 2 * num_runs)).tolist()
    runs = tuple(zip(edges[::2], edges[1::2], strict=True))
    num_blocks = edges[-1] + 3
    bundle = Bundle.of(0, [Component("kv", 8192), Component("index", 4096), Component("scales", 16)])
    expected = merge_ranges(
        (offset + start * page, offset + stop * page)
        for offset, page in zip(bundle.component_offsets_bytes(num_blocks), bundle.pages, strict=True)
        for start, stop in runs
    )
    held = sum(stop - start for start, stop in runs)
    payload = active_payload(bundle, num_blocks, StepHistory(runs, held, {}))
    assert payload.ranges == expected
    assert payload.num_bytes == sum(stop - start for start, stop in expected)
    assert {type(edge) for pair in payload.ranges for edge in pair} == {int}
    assert type(payload.num_bytes) is int


# Six of ten blocks in five ranges: four messages more than the whole bundle, for four blocks less.
@pytest.mark.parametrize(("message_pages", "num_ranges"), [(0, 5), (1, 5), (1.25, 1)])
def test_active_gives_way_to_full_where_its_messages_cost_more_than_it_saves(
    message_pages: float, num_ranges: int
) -> None:
    page = 1 << 16
    message_bytes = int(message_pages * page)
    planner = PayloadPlanner(
        PayloadKind.ACTIVE, 10, cost_bytes=lambda ranges: sum(message_bytes + b - a for a, b in ranges)
    )
    planner.open(StepHistory(((0, 1), (2, 3), (4, 5), (6, 7), (8, 10)), 6, {}))
    assert len(planner.payload(Bundle.of(0, [Component("kv", page)])).ranges) == num_ranges


def test_auto_weighs_costs_and_not_bytes() -> None:
    page = 1 << 16
    history = StepHistory(((0, 1), (2, 3)), 2, {})
    bundle = Bundle.of(0, [Component("kv", page)])
    for message_bytes, num_ranges in ((0, 2), (8 * page, 1)):
        planner = PayloadPlanner(
            PayloadKind.AUTO, 10, cost_bytes=lambda ranges, m=message_bytes: sum(m + b - a for a, b in ranges)
        )
        planner.open(history)
        assert len(planner.payload(bundle).ranges) == num_ranges
