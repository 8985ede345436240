from collections.abc import Iterable

import pytest

from kvply.kvpp.blocks import BlockRuns

NUM_BLOCKS = 2000


def held(*ids: int) -> BlockRuns:
    blocks = BlockRuns(NUM_BLOCKS)
    blocks.add(ids)
    return blocks


def test_new_set_is_empty() -> None:
    blocks = BlockRuns(NUM_BLOCKS)
    assert blocks.runs == ()
    assert blocks.num_held == 0


@pytest.mark.parametrize(
    ("ids", "runs"),
    [
        ([5], ((5, 6),)),
        ([5, 6, 7], ((5, 8),)),
        ([7, 6, 5], ((5, 8),)),
        ([5, 7, 6], ((5, 8),)),
        ([9, 2, 5], ((2, 3), (5, 6), (9, 10))),
        ([0, NUM_BLOCKS - 1], ((0, 1), (NUM_BLOCKS - 1, NUM_BLOCKS))),
    ],
)
def test_runs_are_maximal_whatever_the_order_of_ids(ids: list[int], runs: Iterable[tuple[int, int]]) -> None:
    assert held(*ids).runs == runs


@pytest.mark.parametrize(
    ("removed", "runs"),
    [([2], ((3, 6),)), ([5], ((2, 5),)), ([3], ((2, 3), (4, 6))), ([2, 3, 4, 5], ())],
)
def test_removing_shortens_splits_or_ends_a_run(removed: list[int], runs: Iterable[tuple[int, int]]) -> None:
    blocks = held(2, 3, 4, 5)
    blocks.remove(removed)
    assert blocks.runs == runs
    assert blocks.num_held == 4 - len(removed)


def test_id_held_twice_stays_until_removed_twice() -> None:
    blocks = held(5)
    blocks.add([5])
    blocks.remove([5])
    assert blocks.runs == ((5, 6),)
    blocks.remove([5])
    assert blocks.runs == ()


@pytest.mark.parametrize("num_ids", [256, 257, 900])
def test_small_and_bulk_changes_agree(num_ids: int) -> None:
    every_other = list(range(0, 2 * num_ids, 2))
    blocks = BlockRuns(NUM_BLOCKS)
    blocks.add(every_other)
    assert blocks.runs == tuple((block, block + 1) for block in every_other)
    assert blocks.num_held == num_ids
    blocks.remove(every_other)
    assert blocks.runs == ()
    assert blocks.num_held == 0


def test_bulk_change_counts_ids_held_before_only_once() -> None:
    blocks = held(5, 6, 1500)
    blocks.add(list(range(300)))
    assert blocks.runs == ((0, 300), (1500, 1501))
    assert blocks.num_held == 301
    blocks.remove(list(range(300)))
    assert blocks.runs == ((5, 7), (1500, 1501))
    assert blocks.num_held == 3


def test_runs_are_the_same_object_until_the_held_ids_change() -> None:
    blocks = held(5, 6)
    before = blocks.runs
    blocks.add([6])
    blocks.remove([6])
    assert blocks.runs is before
    blocks.add([7])
    assert blocks.runs == ((5, 8),)


@pytest.mark.parametrize("ids", [[5], [*range(300)]], ids=["small", "bulk"])
def test_removing_what_is_not_held_is_an_error(ids: list[int]) -> None:
    with pytest.raises(KeyError):
        held(4, 6).remove(ids)


def test_integrity_check_finds_runs_kept_from_before_a_change() -> None:
    blocks = held(5, 6)
    blocks._runs = ((5, 6),)
    with pytest.raises(ValueError, match="kept from before"):
        blocks.check_integrity()


@pytest.mark.parametrize("looked_at_before", [False, True])
def test_integrity_check_finds_a_run_that_is_not_counted(looked_at_before: bool) -> None:
    blocks = held(5, 6)
    if looked_at_before:
        assert blocks.runs == ((5, 7),)
    blocks._stops[0] = 8
    with pytest.raises(ValueError, match="do not match"):
        blocks.check_integrity()


def test_integrity_check_finds_a_run_that_is_not_maximal() -> None:
    blocks = held(5, 6)
    blocks._starts, blocks._stops = [5, 6], [6, 7]
    with pytest.raises(ValueError, match="not maximal"):
        blocks.check_integrity()


def test_integrity_check_finds_a_negative_count() -> None:
    blocks = held(5)
    blocks._counts[5] = -1
    with pytest.raises(ValueError, match="do not match"):
        blocks.check_integrity()
