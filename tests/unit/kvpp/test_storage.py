import pytest
import torch

from kvply.errors import LayoutError
from kvply.kvpp.storage import RankStorage, StorageLayout
from kvply.layout.arena import Region
from support.plans import make_plan, make_storage

NUM_BLOCKS = 10
PLAN = make_plan(2, [[64, 32], [64], [64]], local_pages=[[48]])


def test_regions_in_order_owned_local_scratch_staging() -> None:
    layout = StorageLayout(PLAN, 0, NUM_BLOCKS, has_staging=True)
    assert layout.owned == {0: Region(0, 960), 1: Region(960, 640)}
    assert layout.local == (Region(1600, 480),)
    assert layout.scratch == (Region(2080, 960), Region(3040, 960))
    assert layout.staging == Region(4000, 96)
    assert layout.size_bytes == 4096


def test_without_staging_the_scratch_slots_end_the_arena() -> None:
    layout = StorageLayout(PLAN, 0, NUM_BLOCKS, has_staging=False)
    assert layout.staging == Region(4000, 0)
    assert layout.size_bytes == 4000


def test_foreign_layer_lies_at_the_start_of_its_slot() -> None:
    layout = StorageLayout(PLAN, 1, NUM_BLOCKS, has_staging=False)
    slots = [slot.offset_bytes for slot in layout.scratch]
    assert layout.region(0) == Region(slots[0], 960)
    assert layout.region(1) == Region(slots[1], 640)
    assert layout.region(2) == layout.owned[2]


def test_slots_alternate_on_a_rank_that_owns_nothing() -> None:
    layout = StorageLayout(make_plan(8, [[64]] * 5), 7, NUM_BLOCKS, has_staging=False)
    even, odd = layout.scratch
    assert [layout.region(ordinal) for ordinal in range(5)] == [even, odd, even, odd, even]


def test_every_cache_layer_has_a_region_component_after_component() -> None:
    layout = StorageLayout(PLAN, 0, NUM_BLOCKS, has_staging=False)
    assert layout.all_components() == {
        "0.0": Region(0, 640),
        "0.1": Region(640, 320),
        "1.0": Region(960, 640),
        "2.0": Region(2080, 640),
        "3.0": Region(1600, 480),
    }


def test_bundle_views_alias_the_arena() -> None:
    storage = make_storage(PLAN, 0, NUM_BLOCKS)
    storage.bundle(1).fill_(7)
    assert torch.nonzero(storage.arena).flatten().tolist() == list(range(960, 1600))


@pytest.mark.parametrize(("has_staging", "num_bytes"), [(True, 96), (False, 0)])
def test_staging_is_empty_unless_asked_for(has_staging: bool, num_bytes: int) -> None:
    assert make_storage(PLAN, 0, NUM_BLOCKS, has_staging=has_staging).staging.shape == (num_bytes,)


@pytest.mark.parametrize(
    ("arena", "reason"),
    [
        (torch.zeros(3999, dtype=torch.uint8), "3999 bytes, the layout 4000"),
        (torch.zeros(4000, dtype=torch.int8), "flat uint8"),
        (torch.zeros(2, 2000, dtype=torch.uint8), "flat uint8"),
        (torch.zeros(8000, dtype=torch.uint8)[::2], "flat uint8"),
    ],
    ids=["short", "dtype", "two-dimensional", "strided"],
)
def test_arena_of_another_shape_is_refused(arena: torch.Tensor, reason: str) -> None:
    with pytest.raises(LayoutError, match=reason):
        RankStorage(StorageLayout(PLAN, 0, NUM_BLOCKS, has_staging=False), arena)


def test_integrity_check_finds_overlapping_regions() -> None:
    storage = make_storage(PLAN, 0, NUM_BLOCKS)
    storage.layout.owned[1] = Region(900, 640)
    with pytest.raises(LayoutError, match="does not follow"):
        storage.check_integrity()


def test_integrity_check_finds_regions_that_stop_early() -> None:
    storage = make_storage(PLAN, 0, NUM_BLOCKS)
    storage.layout.scratch = (storage.layout.scratch[0], Region(3040, 900))
    storage.layout.staging = Region(3940, 0)
    with pytest.raises(LayoutError, match="regions end at 3940"):
        storage.check_integrity()
