from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvply.kvpp.plan import StagePlan
from kvply.kvpp.storage import StorageLayout
from kvply.layout.arena import Region
from support.strategies import plans

NUM_BLOCKS = st.integers(1, 300)


@st.composite
def layouts(draw: st.DrawFn) -> StorageLayout:
    plan: StagePlan = draw(plans())
    rank = draw(st.integers(0, plan.group_size - 1))
    return StorageLayout(plan, rank, draw(NUM_BLOCKS), has_staging=draw(st.booleans()))


def assert_disjoint_within(regions: list[Region], outer: Region) -> None:
    """Regions in any order; empty ones take no part."""
    spans = sorted((r.offset_bytes, r.end_bytes) for r in regions if r.size_bytes)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(outer.offset_bytes <= start and end <= outer.end_bytes for start, end in spans)


@given(layouts())
def test_regions_are_disjoint_and_fill_the_arena(layout: StorageLayout) -> None:
    regions = [*layout.owned.values(), *layout.local, *layout.scratch, layout.staging]
    assert_disjoint_within(regions, Region(0, layout.size_bytes))
    assert sum(region.size_bytes for region in regions) == layout.size_bytes


@given(layouts())
def test_arena_is_what_the_budget_said(layout: StorageLayout) -> None:
    has_staging = layout.staging.size_bytes > 0
    budget = layout.plan.budget(layout.rank, has_staging=has_staging)
    assert layout.size_bytes == budget.physical_bytes(layout.num_blocks)


@given(layouts())
def test_every_component_of_every_layer_has_a_place_of_its_size(layout: StorageLayout) -> None:
    bundles = [*layout.plan.bundles, *layout.plan.local_bundles]
    sizes = {c.name: c.page_bytes * layout.num_blocks for bundle in bundles for c in bundle.components}
    found = layout.all_components()
    assert {name: region.size_bytes for name, region in found.items()} == sizes
    assert all(region.offset_bytes % 16 == 0 for region in found.values())


@given(layouts())
def test_components_of_a_layer_share_its_region_without_overlap(layout: StorageLayout) -> None:
    found = layout.all_components()
    for ordinal, bundle in enumerate(layout.plan.bundles):
        assert_disjoint_within([found[c.name] for c in bundle.components], layout.region(ordinal))


@given(layouts())
def test_only_foreign_layers_lie_in_scratch_and_slots_alternate(layout: StorageLayout) -> None:
    for ordinal, owner in enumerate(layout.plan.owners):
        region = layout.region(ordinal)
        slots = [i for i, s in enumerate(layout.scratch) if s.offset_bytes <= region.offset_bytes < s.end_bytes]
        assert slots == ([] if owner == layout.rank else [ordinal % 2])
        if slots:
            assert region.end_bytes <= layout.scratch[slots[0]].end_bytes


@given(plans(), NUM_BLOCKS)
def test_ranks_together_own_every_layer_once(plan: StagePlan, num_blocks: int) -> None:
    layouts_of_group = [StorageLayout(plan, rank, num_blocks, has_staging=False) for rank in range(plan.group_size)]
    owned = [ordinal for layout in layouts_of_group for ordinal in layout.owned]
    assert owned == list(range(plan.num_layers))
