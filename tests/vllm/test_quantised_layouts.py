"""Budget and storage follow vLLM's own specs byte by byte, whatever the cache is quantised to."""

from dataclasses import dataclass

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheLayout,
    KVCacheSpec,
    UniformTypeKVCacheSpecs,
)

from kvply.kvpp.plan import StagePlan
from kvply.kvpp.storage import StorageLayout
from kvply.vllm import allocation, translate
from support.cache_specs import indexer_spec, main_spec

NUM_BLOCKS = 3
BLOCK_TOKENS = 64
# GLM-5.2: which of its 78 layers have an indexer of their own (index_topk_freq 4, offset 3).
FULL_LAYERS = frozenset({0, 1, 2, *range(6, 78, 4)})


@dataclass(frozen=True)
class Layout:
    """A main cache as vLLM specifies it, with bytes per token of it and of the fp8 indexer (128 + scale)."""

    name: str
    spec: KVCacheSpec
    main_bytes: int
    indexer_bytes: int = 132


LAYOUTS = [
    Layout("bf16", main_spec(), 1152),
    Layout("fp32", main_spec(dtype=torch.float32), 2304),
    Layout("fp8", main_spec(dtype=torch.uint8, cache_dtype_str="fp8"), 576),
    Layout(
        "fp8_ds_mla",
        main_spec(dtype=torch.uint8, cache_dtype_str="fp8_ds_mla", state_content_bytes=656),
        656,
    ),
    Layout(
        "nvfp4_ds_mla",
        main_spec(dtype=torch.uint8, cache_dtype_str="nvfp4_ds_mla", state_content_bytes=352),
        352,
    ),
]


def glm52(layout: Layout) -> dict[str, KVCacheSpec]:
    specs: dict[str, KVCacheSpec] = {}
    for layer in range(78):
        if layer in FULL_LAYERS:
            specs[f"model.layers.{layer}.self_attn.indexer.k_cache"] = indexer_spec()
        specs[f"model.layers.{layer}.self_attn.attn"] = layout.spec
    return specs


def plan_of(layout: Layout) -> StagePlan:
    return translate.stage_plan(glm52(layout), 8, 78, has_mtp=False)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_bytes_per_token_are_those_of_the_specs(layout: Layout) -> None:
    budget = plan_of(layout).budget(0, has_staging=False)
    per_token = 78 * layout.main_bytes + len(FULL_LAYERS) * layout.indexer_bytes
    assert budget.logical_bytes_per_block == per_token * BLOCK_TOKENS
    # Rank 0: layers 0-9, four of them (0, 1, 2, 6) with an indexer; two slots as large as a full layer.
    owned = 10 * layout.main_bytes + 4 * layout.indexer_bytes
    largest = layout.main_bytes + layout.indexer_bytes
    assert budget.physical_bytes_per_block == (owned + 2 * largest) * BLOCK_TOKENS


def test_golden_numbers_of_glm52_on_eight_ranks() -> None:
    """Published capacity arithmetic for an indexer cache of 132 bytes per token: 92,628 / 14,616."""
    budget = plan_of(LAYOUTS[0]).budget(0, has_staging=False)
    assert budget.logical_bytes_per_block == 92628 * BLOCK_TOKENS
    assert budget.physical_bytes_per_block == 14616 * BLOCK_TOKENS


@pytest.mark.parametrize("rank", [0, 3, 7])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_view_lies_in_the_arena_once(layout: Layout, rank: int) -> None:
    storage = StorageLayout(plan_of(layout), rank, NUM_BLOCKS, has_staging=True)
    specs = glm52(layout)
    uniform = UniformTypeKVCacheSpecs(block_size=BLOCK_TOKENS, kv_cache_specs=specs)
    config = KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(list(specs), uniform)])
    arena = torch.zeros(storage.size_bytes, dtype=torch.uint8)
    views = allocation.layer_views(storage, arena, config, KVCacheLayout.LBNHC, [BLOCK_TOKENS])
    assert views.keys() == specs.keys()
    regions = storage.all_components()
    for name, view in views.items():
        assert view.numel() * view.element_size() == regions[name].size_bytes
        assert view.storage_offset() * view.element_size() == regions[name].offset_bytes
    persistent = sum(region.size_bytes for region in storage.owned.values())
    assert persistent == sum(storage.plan.bundles[o].size_bytes(NUM_BLOCKS) for o in storage.owned)
