"""The cut of a payload into collectives."""

import pytest
import torch

from kvply.kvpp.exchange.batches import DIRECT_MIN_BYTES, pack, split_ranges, unpack
from kvply.kvpp.payload import total_bytes

KIB = 1 << 10
LONG = DIRECT_MIN_BYTES


def test_short_ranges_are_packed_until_staging_is_full() -> None:
    ranges = ((0, 4 * KIB), (10 * KIB, 14 * KIB), (20 * KIB, 24 * KIB))
    assert list(split_ranges(ranges, 8 * KIB)) == [(True, ranges[:2]), (False, ranges[2:])]
    assert list(split_ranges(ranges, 12 * KIB)) == [(True, ranges)]


def test_a_long_range_goes_in_place_and_keeps_its_turn() -> None:
    ranges = ((0, KIB), (2 * KIB, 3 * KIB), (4 * KIB, 4 * KIB + LONG), (LONG * 2, LONG * 2 + KIB))
    assert list(split_ranges(ranges, LONG)) == [(True, ranges[:2]), (False, ranges[2:3]), (False, ranges[3:])]


@pytest.mark.parametrize("staging_bytes", [0, KIB])
def test_what_does_not_fit_into_staging_goes_in_place(staging_bytes: int) -> None:
    ranges = ((0, 2 * KIB), (4 * KIB, 6 * KIB))
    assert list(split_ranges(ranges, staging_bytes)) == [(False, ranges[:1]), (False, ranges[1:])]


def test_nothing_to_send_is_no_collective() -> None:
    assert list(split_ranges((), KIB)) == []


def test_unpack_reverses_pack() -> None:
    source, target = torch.arange(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    ranges = ((3, 7), (20, 21), (40, 60))
    staged = torch.zeros(total_bytes(ranges), dtype=torch.uint8)
    pack(source, ranges, staged)
    unpack(staged, ranges, target)
    for start, stop in ranges:
        assert target[start:stop].equal(source[start:stop])
    assert int((target != 0).sum()) == total_bytes(ranges), "bytes outside the ranges were written"
