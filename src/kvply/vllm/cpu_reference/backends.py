# mypy: disallow-subclassing-any=False
"""The attention backends that vLLM sees: dense MLA, sparse MLA and the indexer's cache.

All of them take any block size, head size, floating dtype and cache strides, and prefill context
parallelism. None of them takes decode context parallelism, quantised main caches or graph capture.
"""

from typing import Any, ClassVar

import torch
from typing_extensions import override
from vllm.config.cache import CacheDType
from vllm.model_executor.layers.attention.sparse_mla_attention import SharedTopkIndicesBuffer
from vllm.utils.torch_utils import is_quantized_kv_cache
from vllm.v1.attention.backend import AttentionBackend, AttentionLayer, AttentionType, MLAAttentionImpl

from kvply.vllm.cpu_reference.attention_math import attend
from kvply.vllm.cpu_reference.metadata import ReferenceMLAMetadata, ReferenceMLAMetadataBuilder
from kvply.vllm.cpu_reference.paged_cache import read_tokens, write_tokens


class _ReferenceBackend(AttentionBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[CacheDType]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_builder_cls() -> type[ReferenceMLAMetadataBuilder]:
        return ReferenceMLAMetadataBuilder

    @classmethod
    def is_mla(cls) -> bool:
        return True


class DenseMLABackend(_ReferenceBackend):
    """MLA over the whole context."""

    @staticmethod
    def get_name() -> str:
        return "KVPLY_CPU_MLA"

    @staticmethod
    def get_impl_cls() -> type["DenseMLAImpl"]:
        return DenseMLAImpl


class SparseMLABackend(_ReferenceBackend):
    """MLA over the positions an indexer selected (DSA)."""

    @staticmethod
    def get_name() -> str:
        return "KVPLY_CPU_MLA_SPARSE"

    @staticmethod
    def get_impl_cls() -> type["SparseMLAImpl"]:
        return SparseMLAImpl

    @classmethod
    def is_sparse(cls) -> bool:
        return True


class IndexerBackend(_ReferenceBackend):
    """Owner of the indexer's key cache. It only builds metadata; the indexer op does the work."""

    @staticmethod
    def get_name() -> str:
        return "KVPLY_CPU_INDEXER"

    @staticmethod
    def get_impl_cls() -> type[MLAAttentionImpl[ReferenceMLAMetadata]]:
        raise NotImplementedError("an indexer cache has no attention of its own")

    @classmethod
    def supports_pcp(cls) -> bool:
        return True


class DenseMLAImpl(MLAAttentionImpl[ReferenceMLAMetadata]):
    """Absorbed MLA for prefill and decode rows alike, one request at a time.

    There is no separate prefill arithmetic: prompts computed in chunks, from a cached prefix or token by
    token go through the same code and read the same cache rows.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ) -> None:
        refused = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
            "kv_cache_dtype": kv_cache_dtype if is_quantized_kv_cache(kv_cache_dtype) else None,
            "attn_type": attn_type if attn_type != AttentionType.DECODER else None,
        }
        unsupported = {name: value for name, value in refused.items() if value is not None}
        if unsupported:
            raise NotImplementedError(f"the CPU reference MLA backends do not support {unsupported}")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_lora_rank: int = mla_args["kv_lora_rank"]

    @override
    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:
        """Write each token's latent and rotated key side by side. ``k_pe`` has shape [T, 1, rope width]."""
        if kv_cache.numel() > 0:
            write_tokens(kv_cache, slot_mapping, torch.cat([kv_c_normed, k_pe.squeeze(1)], dim=-1))

    @override
    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: ReferenceMLAMetadata,
        layer: AttentionLayer,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return [T, num_heads, kv_lora_rank] in the query's dtype, zeros in padding rows, and no LSE."""
        queries = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        output = queries.new_zeros(queries.shape[0], self.num_heads, self.kv_lora_rank)
        selection = self._selection()
        for request in attn_metadata.requests:
            rows = slice(request.start, request.end)
            output[rows] = attend(
                queries[rows],
                read_tokens(kv_c_and_k_pe_cache, request.block_ids, request.seq_len),
                scale=self.scale,
                value_width=self.kv_lora_rank,
                selected=None if selection is None else selection[rows],
            )
        return output, None

    def _selection(self) -> torch.Tensor | None:
        """The positions each batch row may attend to, shape [rows, k], or None for all of them."""
        return None


class SparseMLAImpl(DenseMLAImpl, SharedTopkIndicesBuffer):
    """Dense MLA masked down to the indexer's selection: request-local positions, -1 for none."""

    is_sparse = True
    supports_dense_mha_prefill = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.init_topk_indices_buffer(kwargs.get("indexer"), kwargs.get("topk_indices_buffer"))

    def record_logical_topk_ready(self) -> None:
        """The indexer has written its selection. On one CPU stream there is nobody to tell."""

    @override
    def _selection(self) -> torch.Tensor | None:
        buffer: torch.Tensor | None = self.topk_indices_buffer
        if buffer is None:
            raise RuntimeError("sparse MLA layer without a top-k buffer")
        return buffer
