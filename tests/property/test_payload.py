from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvply.config import PayloadKind
from kvply.kvpp.history import StepHistory
from kvply.kvpp.payload import MERGE_GAP_BYTES, PayloadPlanner, active_payload, full_payload, merge_ranges
from kvply.layout.bundle import Bundle
from support.plans import runs_of
from support.strategies import bundles, histories

NUM_BLOCKS = 900
HISTORIES = histories(NUM_BLOCKS)
KINDS = st.sampled_from(PayloadKind)

Range = tuple[int, int]


def wanted_ranges(bundle: Bundle, history: StepHistory) -> list[Range]:
    """Bytes of every history block of every component, one range per run."""
    ranges, base = [], 0
    for component in bundle.components:
        page = component.page_bytes
        ranges += [(base + start * page, base + stop * page) for start, stop in history.runs]
        base += page * NUM_BLOCKS
    return ranges


def assert_covered(wanted: list[Range], ranges: tuple[Range, ...]) -> None:
    """`ranges` must be sorted and disjoint."""
    starts = [start for start, _ in ranges]
    for start, stop in wanted:
        at = bisect_right(starts, start) - 1
        assert at >= 0
        assert stop <= ranges[at][1]


def assert_merged(wanted: list[Range], ranges: tuple[Range, ...]) -> None:
    """`ranges` hold `wanted` and the gaps up to the limit, and no byte more."""
    filled = [(stop, start) for (_, stop), (start, _) in pairwise(wanted) if start - stop <= MERGE_GAP_BYTES]
    assert_covered(wanted + filled, ranges)
    assert num_bytes(ranges) == num_bytes(wanted) + num_bytes(filled)
    assert all(start - stop > MERGE_GAP_BYTES for (_, stop), (start, _) in pairwise(ranges))


def num_bytes(ranges: Iterable[Range]) -> int:
    return sum(stop - start for start, stop in ranges)


@given(bundles(), HISTORIES)
def test_active_covers_every_history_block_of_every_component(bundle: Bundle, history: StepHistory) -> None:
    assert_merged(wanted_ranges(bundle, history), active_payload(bundle, NUM_BLOCKS, history).ranges)


@given(bundles(), HISTORIES)
def test_active_ranges_are_sorted_disjoint_and_inside_the_bundle(bundle: Bundle, history: StepHistory) -> None:
    ranges = active_payload(bundle, NUM_BLOCKS, history).ranges
    assert all(start < stop for start, stop in ranges)
    assert all(stop < start for (_, stop), (start, _) in pairwise(ranges))
    assert ranges[0][0] >= 0
    assert ranges[-1][1] <= NUM_BLOCKS * sum(c.page_bytes for c in bundle.components)


@given(bundles(), HISTORIES)
def test_useful_is_at_most_sent_is_at_most_full(bundle: Bundle, history: StepHistory) -> None:
    active = active_payload(bundle, NUM_BLOCKS, history)
    full = full_payload(bundle, NUM_BLOCKS, history.num_history_blocks)
    useful_bytes = num_bytes(wanted_ranges(bundle, history))
    assert active.useful_bytes == full.useful_bytes == useful_bytes
    assert active.num_bytes == num_bytes(active.ranges)
    assert useful_bytes <= active.num_bytes <= full.num_bytes
    assert full.num_bytes == NUM_BLOCKS * sum(c.page_bytes for c in bundle.components)


@st.composite
def sorted_ranges(draw: st.DrawFn) -> list[Range]:
    near_limit = st.integers(MERGE_GAP_BYTES - 2, MERGE_GAP_BYTES + 2)
    gaps = draw(st.lists(st.one_of(st.integers(0, 3 * MERGE_GAP_BYTES), near_limit), max_size=12))
    ranges, at = [], 0
    for gap in gaps:
        start = at + gap
        at = start + draw(st.integers(1, 1 << 17))
        ranges.append((start, at))
    return ranges


@given(sorted_ranges())
def test_merging_fills_exactly_the_gaps_up_to_the_limit(ranges: list[Range]) -> None:
    assert_merged(ranges, merge_ranges(ranges))


@given(KINDS, st.lists(bundles(), min_size=1, max_size=4), st.lists(HISTORIES, min_size=1, max_size=3), st.data())
def test_planner_remembers_nothing_that_changes_a_payload(
    kind: PayloadKind, layers: list[Bundle], pool: list[StepHistory], data: st.DataObject
) -> None:
    planner = PayloadPlanner(kind, NUM_BLOCKS)
    for history in data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=5)):
        planner.open(history)
        for bundle in layers:
            fresh = PayloadPlanner(kind, NUM_BLOCKS)
            fresh.open(history)
            assert planner.payload(bundle) == fresh.payload(bundle)


@given(bundles(), HISTORIES)
def test_auto_sends_active_exactly_while_it_saves_a_tenth(bundle: Bundle, history: StepHistory) -> None:
    planner = PayloadPlanner(PayloadKind.AUTO, NUM_BLOCKS)
    planner.open(history)
    active = active_payload(bundle, NUM_BLOCKS, history)
    full = full_payload(bundle, NUM_BLOCKS, history.num_history_blocks)
    saves_a_tenth = 10 * active.num_bytes <= 9 * full.num_bytes
    assert planner.payload(bundle) == (active if saves_a_tenth else full)


@given(st.sets(st.integers(0, NUM_BLOCKS - 1)))
def test_plain_runs_of_the_test_support_hold_the_same_ids(ids: set[int]) -> None:
    runs = runs_of(ids)
    assert {block for start, stop in runs for block in range(start, stop)} == ids
    assert all(stop < start for (_, stop), (start, _) in pairwise(runs))
