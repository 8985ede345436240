# mypy: disallow-subclassing-any=False
"""What a step means for attention, request by request, and the vLLM builder that says so.

One builder serves the dense backend, the sparse backend and the indexer.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from typing_extensions import override
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import KVCacheSpec


class RequestRows(NamedTuple):
    """The rows ``[start, end)`` of a step's batch that belong to one entry of the block table."""

    start: int
    end: int
    seq_len: int
    """Tokens of the request up to and including row ``end - 1``."""
    block_ids: torch.Tensor


@dataclass
class ReferenceMLAMetadata(AttentionMetadata):
    """A step's batch. Rows outside every request (padding) are computed by nobody.

    The last six fields are read by vLLM's MLA layer: every row is declared a decode row, so that vLLM hands
    the whole batch to ``forward_mqa`` and gathers all rows when prefill context parallelism is on.
    """

    requests: list[RequestRows]
    slot_mapping: torch.Tensor
    num_actual_tokens: int
    num_decode_tokens: int
    num_decodes: int
    num_prefills: int = 0
    prefill: None = None
    decode: bool = True


class ReferenceMLAMetadataBuilder(AttentionMetadataBuilder[ReferenceMLAMetadata]):
    """Copies lengths out of vLLM's step metadata when it is built.

    vLLM may change its own length tensors in place afterwards, for speculative decoding; it then builds
    again.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER
    reorder_batch_threshold: int | None = None

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    @override
    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> ReferenceMLAMetadata:
        """Build the metadata of one step; ``common_prefix_len`` and ``fast_build`` make no difference."""
        return ReferenceMLAMetadata(
            requests=split_requests(
                common_attn_metadata.query_start_loc.tolist(),
                common_attn_metadata.seq_lens.tolist(),
                common_attn_metadata.block_table_tensor,
            ),
            slot_mapping=common_attn_metadata.slot_mapping,
            num_actual_tokens=common_attn_metadata.num_actual_tokens,
            num_decode_tokens=common_attn_metadata.num_actual_tokens,
            num_decodes=common_attn_metadata.num_reqs,
        )


def split_requests(query_starts: list[int], seq_lens: list[int], block_table: torch.Tensor) -> list[RequestRows]:
    """Cut a batch at ``query_starts`` (one more entry than requests), dropping requests without rows."""
    return [
        RequestRows(start, end, seq_len, block_ids)
        for start, end, seq_len, block_ids in zip(
            query_starts, query_starts[1:], seq_lens, block_table, strict=False
        )
        if end > start
    ]
