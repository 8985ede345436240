import pytest

from kvply.errors import LayoutError
from kvply.layout.arena import ArenaBuilder, Region


def test_regions_follow_each_other_and_add_up() -> None:
    arena = ArenaBuilder()
    assert [arena.take(size) for size in (32, 0, 16)] == [Region(0, 32), Region(32, 0), Region(32, 16)]
    assert arena.size_bytes == 48


def test_region_ends_where_its_bytes_end() -> None:
    assert Region(offset_bytes=32, size_bytes=16).end_bytes == 48


def test_negative_size_is_refused_and_takes_nothing() -> None:
    arena = ArenaBuilder()
    with pytest.raises(LayoutError, match="-1"):
        arena.take(-1)
    assert arena.size_bytes == 0
