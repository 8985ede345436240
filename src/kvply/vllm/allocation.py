"""Hand vLLM per-layer views into KVPP's arena in place of its own allocation."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor, create_kv_cache_views

from kvply.errors import UnsupportedError
from kvply.kvpp.storage import StorageLayout
from kvply.vllm.translate import layer_specs

# Both model runners bind the allocator by name when they are imported.
_CALL_SITES = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.attn_utils")
_FUNCTION = "allocate_kv_cache"


@contextmanager
def allocating_from(layout: StorageLayout, arena: torch.Tensor) -> Iterator[None]:
    """While open, vLLM's model runners of this process get their KV cache from `arena`.

    Open it only around `Worker.initialize_from_config`; the original is put back on exit.
    """

    def allocate(
        kv_cache_config: KVCacheConfig,
        device: torch.device,
        layout_kind: Any,
        kernel_block_sizes: list[int] | None = None,
    ) -> dict[str, torch.Tensor]:
        if arena.device.type != device.type:
            raise UnsupportedError(f"vLLM wants its cache on {device}, KVPP has it on {arena.device}")
        return layer_views(layout, arena, kv_cache_config, layout_kind, kernel_block_sizes)

    modules = [importlib.import_module(name) for name in _CALL_SITES]
    originals = [getattr(module, _FUNCTION) for module in modules]
    for module in modules:
        setattr(module, _FUNCTION, allocate)
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, _FUNCTION, original)


def layer_views(
    layout: StorageLayout,
    arena: torch.Tensor,
    config: KVCacheConfig,
    layout_kind: Any,
    kernel_block_sizes: list[int] | None,
) -> dict[str, torch.Tensor]:
    """vLLM's per-layer cache views over `arena`. Shape of each: as `create_kv_cache_views` makes it.

    Raises UnsupportedError for cache layouts in which a layer's blocks are not contiguous.
    """
    if not layout_kind.name.startswith("L"):
        raise UnsupportedError(
            f"KV cache layout {layout_kind.name} interleaves the layers of a block, so a layer cannot live on "
            f"its own rank; set VLLM_KV_CACHE_LAYOUT to a layer-outermost layout (LBNHC) or remove enable_kvpp"
        )
    raw = arena.view(torch.int8)
    views: dict[str, torch.Tensor] = {}
    regions = layout.all_components()
    for name, (group_index, spec) in layer_specs(config).items():
        region = regions[name]
        placement = KVCacheTensor(
            size=layout.size_bytes,
            layers=[name],
            layer_stride=region.size_bytes,
            block_stride=spec.page_size_bytes,
            offset=region.offset_bytes,
        )
        kernel_block_size = kernel_block_sizes[group_index] if kernel_block_sizes else None
        (views[name],) = create_kv_cache_views(
            raw, spec, layout.num_blocks, layout_kind, placement, kernel_block_size=kernel_block_size
        )
    return views
