# mypy: disallow-subclassing-any=False
"""The DSA indexer on CPU: the op that vLLM lets platforms replace, and the two hooks it needs around it.

vLLM's generic ``Indexer`` module runs unchanged. Importing this module registers the op with vLLM.
"""

from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override
from vllm.forward_context import get_forward_context
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
from vllm.model_executor.models import deepseek_v2
from vllm.v1.attention.ops.pcp import maybe_gather_indexer_k

from kvply.vllm.cpu_reference.backends import IndexerBackend
from kvply.vllm.cpu_reference.indexer_cache import quantize_ue8m0, read_keys, write_keys
from kvply.vllm.cpu_reference.indexer_selection import NO_TOKEN, select_tokens
from kvply.vllm.cpu_reference.metadata import ReferenceMLAMetadata
from kvply.vllm.cpu_reference.wrapping import wrap_once


def install() -> None:
    """Route the indexer's query quantisation and its cache's backend to the CPU. Idempotent.

    Both are hard-wired in vLLM to Triton kernels, which do not run on CPU.
    """
    wrap_once(deepseek_v2, "per_token_group_quant_fp8", _quantize_on_cpu)
    wrap_once(deepseek_v2.DeepseekV32IndexerCache, "get_attn_backend", _reference_indexer_backend)


def _quantize_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def per_token_group_quant_fp8(
        x: torch.Tensor, group_size: int, eps: float = 1e-10, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not options.get("use_ue8m0"):
            result: tuple[torch.Tensor, torch.Tensor] = original(x, group_size, eps, **options)
            return result
        return quantize_ue8m0(x, group_size, eps)

    return per_token_group_quant_fp8


def _reference_indexer_backend(_original: Callable[..., Any]) -> Callable[..., Any]:
    def get_attn_backend(_cache: torch.nn.Module) -> type[IndexerBackend]:
        return IndexerBackend

    return get_attn_backend


@CustomOp.register_oot(name="SparseAttnIndexer")  # type: ignore[untyped-decorator, unused-ignore]
class ReferenceSparseAttnIndexer(SparseAttnIndexer):
    """Stores the step's keys, scores every visible token and writes the top-k positions."""

    @override
    def forward_cpu(
        self,
        hidden_states: torch.Tensor,
        q_quant: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        k: torch.Tensor | None,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """Fill and return the top-k buffer: request-local positions, -1 for none and in padding rows.

        Shapes: ``q_quant`` fp8 [rows, heads, head_dim], ``k`` [rows, head_dim], ``weights`` [rows, heads]
        with the query scales folded in. Other models' indexers (DeepSeek V4) go to vLLM's own CPU code.
        """
        selection: torch.Tensor = self.topk_indices_buffer
        step = get_forward_context().attn_metadata
        if not isinstance(step, dict):
            return selection  # profiling or dummy run
        metadata = step[self.k_cache.prefix]
        if not isinstance(metadata, ReferenceMLAMetadata):
            stock: torch.Tensor = super().forward_cpu(hidden_states, q_quant, k, weights)
            return stock
        if isinstance(q_quant, tuple) or self.use_fp4_cache or self.candidate_blocks is not None:
            raise NotImplementedError("the CPU reference indexer supports neither fp4 nor candidate blocks")
        if k is not None and not self.skip_k_cache_insert:
            self._store(k, metadata)
        selection[: hidden_states.shape[0]] = NO_TOKEN
        self._select(q_quant, weights, metadata, selection)
        return selection

    def _store(self, k: torch.Tensor, metadata: ReferenceMLAMetadata) -> None:
        keys, slots = maybe_gather_indexer_k(
            k,
            metadata.slot_mapping,
            metadata.num_decode_tokens,
            self.use_pcp,
            pcp_shard_decode_requests=self.pcp_shard_decode_requests,
        )
        write_keys(self.k_cache.kv_cache, slots, keys)

    def _select(
        self,
        queries: torch.Tensor,
        weights: torch.Tensor,
        metadata: ReferenceMLAMetadata,
        selection: torch.Tensor,
    ) -> None:
        for request in metadata.requests:
            rows = slice(request.start, request.end)
            selection[rows, : self.topk_tokens] = select_tokens(
                queries[rows],
                weights[rows],
                read_keys(self.k_cache.kv_cache, request.block_ids, request.seq_len),
                self.topk_tokens,
            )
