"""Batches for the attention backends, and attention written out token by token to compare them with."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from kvply.vllm.cpu_reference.backends import DenseMLAImpl, SparseMLAImpl
from kvply.vllm.cpu_reference.metadata import ReferenceMLAMetadata, ReferenceMLAMetadataBuilder

LATENT_WIDTH, ROPE_WIDTH, NUM_HEADS = 24, 8, 3
WIDTH = LATENT_WIDTH + ROPE_WIDTH
SCALE = 0.21


@dataclass
class Request:
    """A request in the middle of its life: rows of tokens it already has, and rows of this step."""

    num_context: int
    num_new: int
    latents: torch.Tensor
    queries: torch.Tensor

    @property
    def seq_len(self) -> int:
        return self.num_context + self.num_new


@dataclass
class Batch:
    """Requests laid out in one paged cache with shuffled block ids."""

    requests: list[Request]
    cache: torch.Tensor
    block_table: torch.Tensor

    @property
    def queries(self) -> torch.Tensor:
        return torch.cat([request.queries for request in self.requests])

    def slots(self, index: int, start: int, end: int) -> torch.Tensor:
        """The slots of token positions ``[start, end)`` of one request."""
        block_size = self.cache.shape[1]
        positions = torch.arange(start, end)
        return self.block_table[index, positions // block_size] * block_size + positions % block_size

    def step_slots(self) -> torch.Tensor:
        return torch.cat([self.slots(i, r.num_context, r.seq_len) for i, r in enumerate(self.requests)])

    def metadata(self, num_padding_rows: int = 0) -> ReferenceMLAMetadata:
        """The step's metadata, built by the real builder from vLLM's own batch description."""
        starts = torch.tensor([0, *(r.num_new for r in self.requests)]).cumsum(0).int()
        padding = torch.full((num_padding_rows,), -1)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor([r.seq_len for r in self.requests]),
            num_reqs=len(self.requests),
            num_actual_tokens=int(starts[-1]) + num_padding_rows,
            max_query_len=max(r.num_new for r in self.requests),
            max_seq_len=max(r.seq_len for r in self.requests),
            block_table_tensor=self.block_table,
            slot_mapping=torch.cat([self.step_slots(), padding]),
        )
        spec = MLAAttentionSpec(
            block_size=self.cache.shape[1], num_kv_heads=1, head_size=WIDTH, dtype=self.cache.dtype
        )
        builder = ReferenceMLAMetadataBuilder(spec, ["layer"], VllmConfig(), torch.device("cpu"))
        return builder.build(0, common)

    def write(self, impl: DenseMLAImpl, index: int, start: int, end: int) -> None:
        """Put token positions ``[start, end)`` of one request into the cache, through the backend."""
        rows = self.requests[index].latents[start:end]
        impl.do_kv_cache_update(
            rows[:, :LATENT_WIDTH],
            rows[:, None, LATENT_WIDTH:],
            self.cache,
            self.slots(index, start, end),
            "auto",
            torch.ones(1),
        )


def make_cache(num_blocks: int, block_size: int, width: int, dtype: torch.dtype, strided: bool) -> torch.Tensor:
    """A cache of ones; ``strided`` puts an odd number of values between blocks, as in a shared allocation."""
    if not strided:
        return torch.ones(num_blocks, block_size, width, dtype=dtype)
    page = block_size * width
    stride = 2 * page + 40
    raw = torch.ones(num_blocks * stride, dtype=dtype)
    return raw.as_strided((num_blocks, block_size, width), (stride, width, 1), page // 2)


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """``make_batch(shapes, block_size=, dtype=, strided=)`` with shapes of (context tokens, new tokens)."""

    def make(
        shapes: Sequence[tuple[int, int]],
        *,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        strided: bool = False,
        seed: int = 0,
    ) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        requests = [
            Request(
                num_context=context,
                num_new=new,
                latents=torch.randn(context + new, WIDTH, generator=generator).to(dtype),
                queries=torch.randn(new, NUM_HEADS, WIDTH, generator=generator).to(dtype),
            )
            for context, new in shapes
        ]
        per_request = max(math.ceil(r.seq_len / block_size) for r in requests)
        num_blocks = per_request * len(requests)
        shuffled = torch.randperm(num_blocks, generator=generator) + 1  # block 0 is vLLM's null block
        return Batch(
            requests=requests,
            cache=make_cache(num_blocks + 1, block_size, WIDTH, dtype, strided),
            block_table=shuffled.view(len(requests), per_request).int(),
        )

    return make


def _make_impl(kind: type[DenseMLAImpl], **overrides: object) -> DenseMLAImpl:
    arguments: dict[str, object] = {
        "num_heads": NUM_HEADS,
        "head_size": WIDTH,
        "scale": SCALE,
        "num_kv_heads": 1,
        "alibi_slopes": None,
        "sliding_window": None,
        "kv_cache_dtype": "auto",
        "logits_soft_cap": None,
        "attn_type": "decoder",
        "kv_sharing_target_layer_name": None,
        "kv_lora_rank": LATENT_WIDTH,
    }
    with set_current_vllm_config(VllmConfig()):
        return kind(**(arguments | overrides))  # type: ignore[arg-type]


@pytest.fixture
def make_dense() -> Callable[..., DenseMLAImpl]:
    return lambda **overrides: _make_impl(DenseMLAImpl, **overrides)


@pytest.fixture
def make_sparse() -> Callable[..., DenseMLAImpl]:
    return lambda selection, **overrides: _make_impl(SparseMLAImpl, topk_indices_buffer=selection, **overrides)


def naive_attention(request: Request, visible: Callable[[int], list[int]] | None = None) -> torch.Tensor:
    """Attention of a request's new tokens, one token and head at a time in fp64.

    ``visible`` maps a token position to the positions it may look at; by default all up to its own.
    """
    latents, queries = request.latents.double(), request.queries.double()
    output = torch.zeros(request.num_new, NUM_HEADS, LATENT_WIDTH, dtype=torch.float64)
    for row in range(request.num_new):
        position = request.num_context + row
        positions = list(range(position + 1)) if visible is None else visible(position)
        if not positions:
            continue
        keys = latents[positions]
        for head in range(NUM_HEADS):
            exponents = (keys * queries[row, head]).sum(dim=1) * SCALE
            weights = (exponents - exponents.max()).exp()
            output[row, head] = (weights[:, None] * keys[:, :LATENT_WIDTH]).sum(dim=0) / weights.sum()
    return output


@pytest.fixture
def naive() -> Callable[..., torch.Tensor]:
    return naive_attention
