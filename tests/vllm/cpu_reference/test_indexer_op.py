"""The indexer op as vLLM calls it: inside a forward context, on the layer's cache."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
from vllm.model_executor.models import deepseek_v2

from kvply.vllm.cpu_reference import indexer
from kvply.vllm.cpu_reference.backends import IndexerBackend
from kvply.vllm.cpu_reference.indexer_cache import quantize_ue8m0
from kvply.vllm.cpu_reference.metadata import ReferenceMLAMetadata, split_requests

HEAD_DIM, NUM_HEADS, BLOCK_SIZE, TOPK = 128, 4, 16, 8
LAYER = "model.layers.0.self_attn.indexer.k_cache"


@pytest.fixture
def config() -> Iterator[VllmConfig]:
    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


@pytest.fixture
def op(config: VllmConfig) -> SparseAttnIndexer:  # noqa: ARG001 (vLLM's op reads the current configuration)
    cache = torch.zeros(12, BLOCK_SIZE, HEAD_DIM + 4, dtype=torch.uint8)
    return SparseAttnIndexer(
        SimpleNamespace(prefix=LAYER, kv_cache=cache),
        quant_block_size=128,
        scale_fmt="ue8m0",
        topk_tokens=TOPK,
        head_dim=HEAD_DIM,
        max_model_len=256,
        max_total_seq_len=256,
        topk_indices_buffer=torch.full((64, TOPK), 7, dtype=torch.int32),
    )


def step(op: SparseAttnIndexer, config: VllmConfig, metadata: Any, keys: torch.Tensor) -> torch.Tensor:
    """Run the op on queries equal to the keys, so that every token scores highest with itself."""
    num_rows = keys.shape[0]
    queries, scales = quantize_ue8m0(keys[:, None].expand(-1, NUM_HEADS, -1), 128, 1e-10)
    with set_forward_context(metadata, config):
        selection: torch.Tensor = op(torch.zeros(num_rows, 1), queries, keys, scales[..., 0])
    return selection


def two_requests(keys_done: int) -> dict[str, ReferenceMLAMetadata]:
    """A request of 40 tokens of which ``keys_done`` are in the cache already, and one of 3 tokens."""
    block_table = torch.tensor([[5, 2, 9], [7, 0, 0]])
    new = 40 - keys_done
    positions = torch.arange(keys_done, 40)
    slots = block_table[0, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    slots = torch.cat([slots, 7 * BLOCK_SIZE + torch.arange(3)])
    requests = split_requests([0, new, new + 3], [40, 3], block_table)
    return {
        LAYER: ReferenceMLAMetadata(
            requests=requests,
            slot_mapping=slots,
            num_actual_tokens=new + 3,
            num_decode_tokens=new + 3,
            num_decodes=2,
        )
    }


def test_vllm_builds_the_reference_op(op: SparseAttnIndexer) -> None:
    assert type(op) is indexer.ReferenceSparseAttnIndexer


def test_a_step_fills_the_rows_of_its_requests(op: SparseAttnIndexer, config: VllmConfig) -> None:
    keys = torch.randn(43 + 2, HEAD_DIM, generator=torch.Generator().manual_seed(1))  # two rows of padding

    selection = step(op, config, two_requests(keys_done=0), keys)

    assert selection is op.topk_indices_buffer
    for row in range(43):
        position = row if row < 40 else row - 40
        chosen = [p for p in selection[row].tolist() if p >= 0]
        assert len(chosen) == min(TOPK, position + 1)
        assert chosen[0] == position
        assert max(chosen) <= position
    assert (selection[43:45] == -1).all()
    assert (selection[45:] == 7).all()


def test_cached_keys_count_like_new_ones(op: SparseAttnIndexer, config: VllmConfig) -> None:
    keys = torch.randn(43, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    at_once = step(op, config, two_requests(keys_done=0), keys)[25:43].clone()

    later = step(op, config, two_requests(keys_done=25), keys[25:])

    assert torch.equal(later[:18], at_once)


def test_a_dummy_run_touches_nothing(op: SparseAttnIndexer, config: VllmConfig) -> None:
    selection = step(op, config, None, torch.ones(4, HEAD_DIM))

    assert (selection == 7).all()
    assert not op.k_cache.kv_cache.any()


def test_fp4_is_refused(op: SparseAttnIndexer, config: VllmConfig) -> None:
    op.use_fp4_cache = True

    with pytest.raises(NotImplementedError, match="fp4"):
        step(op, config, two_requests(keys_done=0), torch.ones(43, HEAD_DIM))


@pytest.fixture
def restore_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in [
        (deepseek_v2, "per_token_group_quant_fp8"),
        (deepseek_v2.DeepseekV32IndexerCache, "get_attn_backend"),
    ]:
        stock = getattr(owner, name)
        monkeypatch.setattr(owner, name, getattr(stock, "__wrapped__", stock))


@pytest.mark.usefixtures("restore_vllm")
def test_installing_routes_vllms_indexer_to_the_cpu(config: VllmConfig) -> None:
    indexer.install()
    indexer.install()

    cache = deepseek_v2.DeepseekV32IndexerCache(HEAD_DIM + 4, torch.uint8, LAYER, config.cache_config)
    assert cache.get_attn_backend() is IndexerBackend
    values = torch.randn(6, HEAD_DIM)
    quantized, scales = deepseek_v2.per_token_group_quant_fp8(values, 128, use_ue8m0=True)
    assert quantized.shape == values.shape
    assert scales.shape == (6, 1)
    torch.testing.assert_close(quantized.float() * scales, values, rtol=2**-4, atol=2**-6)


def test_the_indexer_backend_has_no_attention_of_its_own() -> None:
    assert IndexerBackend.supports_pcp()
    with pytest.raises(NotImplementedError):
        IndexerBackend.get_impl_cls()
