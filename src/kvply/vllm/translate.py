"""vLLM's cache specs and scheduler output, as kvply's own frozen types."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)

from kvply.errors import UnsupportedError
from kvply.kvpp.history import ScheduledRequest
from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle, Component

_LAYER_INDEX = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def stage_plan(
    specs: Mapping[str, KVCacheSpec], group_size: int, num_target_layers: int, *, has_mtp: bool
) -> StagePlan:
    """Plan of the stage whose cache layers are `specs` (vLLM's name -> spec).

    Layers from `num_target_layers` on are MTP layers, as vLLM numbers them. Raises UnsupportedError for a
    spec that is not known to be the same on all ranks of the group.
    """
    components: dict[int, list[Component]] = {}
    for name, spec in specs.items():
        refuse_unknown_spec(name, spec)
        components.setdefault(layer_index(name), []).append(Component(name, spec.page_size_bytes))
    bundles = [Bundle.of(layer, parts) for layer, parts in components.items()]
    local = [bundle for bundle in bundles if bundle.layer >= num_target_layers]
    if local and not has_mtp:
        raise UnsupportedError(
            f"cache layers {[b.layer for b in local]} lie beyond the model's {num_target_layers} layers although "
            f"no MTP is configured; KVPP does not know this model. Remove enable_kvpp"
        )
    targets = [bundle for bundle in bundles if bundle.layer < num_target_layers]
    return StagePlan.build(group_size, targets, local)


def layer_index(name: str) -> int:
    """Decoder layer a cache layer belongs to: the number behind `layers.` in vLLM's name."""
    match = _LAYER_INDEX.search(name)
    if match is None:
        raise UnsupportedError(f"cache layer {name} does not say which decoder layer it belongs to")
    return int(match.group(1))


def refuse_unknown_spec(name: str, spec: KVCacheSpec) -> None:
    """Raise UnsupportedError unless `spec` is a replicated, block-addressed MLA or indexer cache."""
    known = isinstance(spec, MLAAttentionSpec) and not isinstance(spec, HiddenStateCacheSpec)
    if known and spec.max_tp_shards == 1 and spec.has_layer_views:
        return
    raise UnsupportedError(
        f"cache layer {name} has a {type(spec).__name__} that KVPP does not know to be the same on every rank; "
        f"remove enable_kvpp"
    )


def layer_specs(config: KVCacheConfig) -> dict[str, tuple[int, KVCacheSpec]]:
    """(group index, spec) of every cache layer in `config`."""
    found: dict[str, tuple[int, KVCacheSpec]] = {}
    for index, group in enumerate(config.kv_cache_groups):
        spec = group.kv_cache_spec
        for name in group.layer_names:
            uniform = isinstance(spec, UniformTypeKVCacheSpecs)
            found[name] = (index, spec.kv_cache_specs[name] if uniform else spec)
    return found


def block_size_tokens(config: KVCacheConfig) -> int:
    """Tokens per logical block. Raises UnsupportedError if layers do not share one block table."""
    if len(config.kv_cache_groups) != 1:
        raise UnsupportedError(
            f"the model has {len(config.kv_cache_groups)} KV cache groups with block tables of their own; KVPP "
            f"supports models whose layers share one. Remove enable_kvpp"
        )
    return int(config.kv_cache_groups[0].kv_cache_spec.block_size)


def scheduled_requests(output: SchedulerOutput) -> list[ScheduledRequest]:
    """Every request of the step, new and known."""
    requests = [
        ScheduledRequest(new.req_id, new.block_ids[0], new.num_computed_tokens, replaces_blocks=True)
        for new in output.scheduled_new_reqs
    ]
    cached = output.scheduled_cached_reqs
    rows = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
    for req_id, block_ids, num_computed_tokens in rows:
        resumed = req_id in cached.resumed_req_ids
        requests.append(
            ScheduledRequest(req_id, _first_group(block_ids), num_computed_tokens, replaces_blocks=resumed)
        )
    return requests


def _first_group(block_ids: Any) -> Sequence[int]:
    return block_ids[0] if block_ids else ()


def writes_cache_before_forward(output: SchedulerOutput) -> bool:
    """Whether vLLM zeroes or copies cache blocks of this step before the model runs."""
    return bool(output.new_block_ids_to_zero) or bool(output.kv_cache_block_copies)
