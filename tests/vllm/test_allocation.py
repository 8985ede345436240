"""Every byte KVPP allocates is in the budget, and vLLM's views lie where the layout says."""

import importlib

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheLayout,
    KVCacheSpec,
    UniformTypeKVCacheSpecs,
)

from kvply.errors import UnsupportedError
from kvply.kvpp.storage import RankStorage, StorageLayout
from kvply.vllm import allocation, translate
from support.cache_specs import indexer_spec, main_spec

NUM_BLOCKS = 5


def sparse_stage() -> dict[str, KVCacheSpec]:
    """Five layers, every second with an indexer, and one MTP layer."""
    specs: dict[str, KVCacheSpec] = {}
    for layer in range(6):
        if layer % 2 == 0:
            specs[f"model.layers.{layer}.self_attn.indexer.k_cache"] = indexer_spec()
        specs[f"model.layers.{layer}.self_attn.attn"] = main_spec()
    return specs


@pytest.fixture(params=[0, 1, 2], ids=lambda rank: f"rank{rank}")
def layout(request: pytest.FixtureRequest) -> StorageLayout:
    plan = translate.stage_plan(sparse_stage(), 3, 5, has_mtp=True)
    return StorageLayout(plan, request.param, NUM_BLOCKS, has_staging=True)


def kv_cache_config() -> KVCacheConfig:
    specs = sparse_stage()
    uniform = UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs=specs)
    return KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(list(specs), uniform)])


def views_of(layout: StorageLayout, arena: torch.Tensor) -> dict[str, torch.Tensor]:
    return allocation.layer_views(layout, arena, kv_cache_config(), KVCacheLayout.LBNHC, [64])


def test_the_sum_of_all_bytes_is_the_budget(layout: StorageLayout) -> None:
    budget = layout.plan.budget(layout.rank, has_staging=True)
    arena = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    storage = RankStorage(layout, arena)
    views = views_of(layout, arena)
    allocated = {view.untyped_storage().data_ptr(): view.untyped_storage().nbytes() for view in views.values()}
    allocated[storage.staging.untyped_storage().data_ptr()] = storage.staging.untyped_storage().nbytes()
    assert sum(allocated.values()) == arena.numel() == budget.physical_bytes(NUM_BLOCKS)


def test_a_write_through_a_view_lands_in_its_bundle_only(layout: StorageLayout) -> None:
    arena = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    storage = RankStorage(layout, arena)
    views = views_of(layout, arena)
    for ordinal, bundle in enumerate(layout.plan.bundles):
        offsets = bundle.component_offsets_bytes(NUM_BLOCKS)
        for component, offset in zip(bundle.components, offsets, strict=True):
            arena.zero_()
            views[component.name][3].view(torch.uint8).fill_(7)
            start = offset + 3 * component.page_bytes
            page = storage.bundle(ordinal)[start : start + component.page_bytes]
            assert bool((page == 7).all())
            assert int((arena == 7).sum()) == component.page_bytes


def test_block_outermost_layouts_are_refused(layout: StorageLayout) -> None:
    arena = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    with pytest.raises(UnsupportedError, match="VLLM_KV_CACHE_LAYOUT"):
        allocation.layer_views(layout, arena, kv_cache_config(), KVCacheLayout.BLHNC, [64])


def test_vllm_allocates_from_the_arena_only_while_open(layout: StorageLayout) -> None:
    modules = [importlib.import_module(name) for name in allocation._CALL_SITES]
    originals = [module.allocate_kv_cache for module in modules]
    arena = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    with allocation.allocating_from(layout, arena):
        for module in modules:
            views = module.allocate_kv_cache(
                kv_cache_config(), torch.device("cpu"), KVCacheLayout.LBNHC, kernel_block_sizes=[64]
            )
            assert {view.untyped_storage().data_ptr() for view in views.values()} == {arena.data_ptr()}
    assert [module.allocate_kv_cache for module in modules] == originals
