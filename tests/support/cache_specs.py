"""vLLM cache specs as DeepSeek-style models have them."""

import torch
from vllm.v1.kv_cache_interface import MLAAttentionSpec, SparseCacheRole


def main_spec(**changes: object) -> MLAAttentionSpec:
    fields = {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": torch.bfloat16, "max_tp_shards": 1}
    return MLAAttentionSpec(**{**fields, **changes})


def indexer_spec() -> MLAAttentionSpec:
    return main_spec(head_size=132, dtype=torch.uint8, cache_role=SparseCacheRole.INDEXER)
