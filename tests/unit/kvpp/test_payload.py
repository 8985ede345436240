import pytest

from kvply.config import PayloadKind
from kvply.kvpp.payload import (
    MERGE_GAP_BYTES,
    Payload,
    PayloadPlanner,
    Ranges,
    active_payload,
    full_payload,
    merge_ranges,
)
from support.plans import make_bundle, make_history

LARGE, SMALL = 1 << 16, 1 << 12


def planner(kind: PayloadKind, num_blocks: int, *runs: tuple[int, int]) -> PayloadPlanner:
    opened = PayloadPlanner(kind, num_blocks)
    opened.open(make_history(*runs))
    return opened


def test_full_is_the_whole_bundle() -> None:
    assert full_payload(make_bundle(0, LARGE, SMALL), 10, 3) == Payload(
        ranges=((0, 10 * (LARGE + SMALL)),), num_bytes=10 * (LARGE + SMALL), useful_bytes=3 * (LARGE + SMALL)
    )


def test_active_is_the_history_blocks_of_every_component() -> None:
    payload = active_payload(make_bundle(0, LARGE, LARGE // 2), 10, make_history((1, 2), (7, 9)))
    assert payload.ranges == (
        (LARGE, 2 * LARGE),
        (7 * LARGE, 9 * LARGE),
        (10 * LARGE + LARGE // 2, 11 * LARGE),
        (10 * LARGE + 7 * LARGE // 2, 10 * LARGE + 9 * LARGE // 2),
    )
    assert payload.num_bytes == payload.useful_bytes == 3 * LARGE + 3 * LARGE // 2


@pytest.mark.parametrize("num_runs", [1, 256, 257, 1000])
def test_active_is_the_same_for_few_and_many_runs(num_runs: int) -> None:
    runs = [(3 * i, 3 * i + 1 + i % 2) for i in range(num_runs)]
    payload = active_payload(make_bundle(0, LARGE), 3000, make_history(*runs))
    assert payload.ranges == tuple((start * LARGE, stop * LARGE) for start, stop in runs)


@pytest.mark.parametrize("num_runs", [2, 256, 257, 1000])
def test_few_and_many_runs_fill_the_same_gaps(num_runs: int) -> None:
    page = MERGE_GAP_BYTES
    runs = [(2 * i + i // 10, 2 * i + i // 10 + 1) for i in range(num_runs)]
    payload = active_payload(make_bundle(0, page), 3000, make_history(*runs))
    tens = [runs[at : at + 10] for at in range(0, num_runs, 10)]
    assert payload.ranges == tuple((ten[0][0] * page, ten[-1][1] * page) for ten in tens)


def test_filled_gaps_are_sent_but_not_useful() -> None:
    payload = active_payload(make_bundle(0, SMALL), 10, make_history((0, 1), (3, 4)))
    assert payload == Payload(ranges=((0, 4 * SMALL),), num_bytes=4 * SMALL, useful_bytes=2 * SMALL)


def test_ranges_join_across_components_that_touch() -> None:
    payload = active_payload(make_bundle(0, LARGE, SMALL), 4, make_history((3, 4)))
    assert payload.ranges == ((3 * LARGE, 4 * LARGE + 4 * SMALL),)


@pytest.mark.parametrize(
    ("gap_bytes", "num_ranges"),
    [(0, 1), (1, 1), (MERGE_GAP_BYTES, 1), (MERGE_GAP_BYTES + 1, 2)],
)
def test_gap_is_filled_up_to_the_limit(gap_bytes: int, num_ranges: int) -> None:
    assert len(merge_ranges([(0, 16), (16 + gap_bytes, 32 + gap_bytes)])) == num_ranges


def test_nothing_merges_to_nothing() -> None:
    assert merge_ranges([]) == ()


@pytest.mark.parametrize("kind", [PayloadKind.FULL, PayloadKind.ACTIVE])
def test_planner_does_what_the_user_asked_for(kind: PayloadKind) -> None:
    bundle, history = make_bundle(0, LARGE), make_history((0, 10))
    expected = {
        PayloadKind.FULL: Payload(((0, 20 * LARGE),), 20 * LARGE, 10 * LARGE),
        PayloadKind.ACTIVE: Payload(((0, 10 * LARGE),), 10 * LARGE, 10 * LARGE),
    }[kind]
    assert planner(kind, 20, *history.runs).payload(bundle) == expected


@pytest.mark.parametrize(("num_history_blocks", "num_sent_blocks"), [(1, 1), (18, 18), (19, 20), (20, 20)])
def test_auto_packs_while_that_saves_a_tenth(num_history_blocks: int, num_sent_blocks: int) -> None:
    payload = planner(PayloadKind.AUTO, 20, (0, num_history_blocks)).payload(make_bundle(0, LARGE))
    assert payload.num_bytes == num_sent_blocks * LARGE
    assert payload.useful_bytes == num_history_blocks * LARGE


@pytest.mark.parametrize(("kind", "last_packed"), [(PayloadKind.ACTIVE, 7), (PayloadKind.AUTO, 6)])
def test_full_is_sent_where_many_ranges_would_cost_more(kind: PayloadKind, last_packed: int) -> None:
    """The whole bundle costs 20 blocks; every further range costs two on top of its own."""

    def cost_bytes(ranges: Ranges) -> int:
        return sum(stop - start for start, stop in ranges) + 2 * (len(ranges) - 1) * LARGE

    packed = []
    for num_ranges in range(1, 11):
        opened = PayloadPlanner(kind, 20, cost_bytes=cost_bytes)
        opened.open(make_history(*((2 * i, 2 * i + 1) for i in range(num_ranges))))
        packed.append(opened.payload(make_bundle(0, LARGE)).num_bytes == num_ranges * LARGE)
    assert packed == [num_ranges <= last_packed for num_ranges in range(1, 11)]


def test_auto_counts_filled_gaps_as_sent() -> None:
    every_other = tuple((block, block + 1) for block in range(0, 20, 2))
    assert planner(PayloadKind.AUTO, 20, *every_other).payload(make_bundle(0, SMALL)).num_bytes == 20 * SMALL


def test_bundles_with_equal_pages_share_one_payload() -> None:
    opened = planner(PayloadKind.AUTO, 20, (0, 3))
    assert opened.payload(make_bundle(0, LARGE)) is opened.payload(make_bundle(7, LARGE))
    assert opened.payload(make_bundle(0, LARGE)) != opened.payload(make_bundle(0, LARGE, SMALL))


def test_payload_is_kept_while_the_blocks_stay_the_same() -> None:
    opened, bundle = planner(PayloadKind.AUTO, 20, (0, 3)), make_bundle(0, LARGE)
    before = opened.payload(bundle)
    opened.open(make_history((0, 3)))
    assert opened.payload(bundle) is before
    opened.open(make_history((0, 4)))
    assert opened.payload(bundle).useful_bytes == 4 * LARGE
