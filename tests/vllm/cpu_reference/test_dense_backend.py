"""The dense backend against attention written out token by token."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvply.vllm.cpu_reference.backends import DenseMLAImpl

MakeBatch = Callable[..., Any]
MakeImpl = Callable[..., DenseMLAImpl]
Naive = Callable[..., torch.Tensor]

MIXED_BATCH = [(0, 5), (130, 1), (40, 90), (255, 3), (0, 1)]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def run(batch: Any, impl: DenseMLAImpl, num_padding_rows: int = 0) -> torch.Tensor:
    """One step as vLLM does it: history is there, the new rows are written, then everything attends."""
    for index, request in enumerate(batch.requests):
        batch.write(impl, index, 0, request.seq_len)
    queries = torch.cat([batch.queries, torch.ones(num_padding_rows, *batch.queries.shape[1:]).to(batch.queries)])
    latent, rope = queries[..., :24], queries[..., 24:]
    output, lse = impl.forward_mqa((latent, rope), batch.cache, batch.metadata(num_padding_rows), None)
    assert lse is None
    return output


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("block_size", [1, 7, 16, 64, 128])
def test_mixed_batch_equals_naive_attention(
    make_batch: MakeBatch, make_dense: MakeImpl, naive: Naive, block_size: int, dtype: torch.dtype, strided: bool
) -> None:
    batch = make_batch(MIXED_BATCH, block_size=block_size, dtype=dtype, strided=strided)

    output = run(batch, make_dense())

    assert output.dtype == dtype
    expected = torch.cat([naive(request) for request in batch.requests])
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=TOLERANCE[dtype])


def test_rows_do_not_depend_on_the_rest_of_the_batch(make_batch: MakeBatch, make_dense: MakeImpl) -> None:
    batch = make_batch(MIXED_BATCH)
    together = run(batch, make_dense()).split([new for _, new in MIXED_BATCH])

    for index, request in enumerate(batch.requests):
        alone = make_batch([(1, 1)])
        alone.requests, alone.cache = [request], batch.cache
        alone.block_table = batch.block_table[index : index + 1]
        assert torch.equal(run(alone, make_dense()), together[index])


@pytest.mark.parametrize("chunks", [[300], [100, 1, 150, 49], [128, 128, 44], [1] * 20 + [280]], ids=str)
def test_prompt_in_chunks_equals_prompt_at_once(
    make_batch: MakeBatch, make_dense: MakeImpl, naive: Naive, chunks: list[int]
) -> None:
    batch = make_batch([(0, 300)])
    impl = make_dense()
    whole = batch.requests[0]
    outputs = []
    done = 0
    for num_new in chunks:
        end = done + num_new
        batch.requests = [
            type(whole)(done, num_new, whole.latents[:end], whole.queries[done:end]),
        ]
        batch.write(impl, 0, done, end)
        outputs.append(impl.forward_mqa(batch.queries, batch.cache, batch.metadata(), None)[0])
        done = end

    torch.testing.assert_close(torch.cat(outputs).double(), naive(whole), rtol=0, atol=2e-6)


def test_padding_rows_are_zero_and_write_nothing(make_batch: MakeBatch, make_dense: MakeImpl) -> None:
    batch = make_batch([(3, 2)])
    impl = make_dense()

    output = run(batch, impl, num_padding_rows=3)

    assert torch.equal(output[2:], torch.zeros_like(output[2:]))
    before = batch.cache.clone()
    impl.do_kv_cache_update(
        torch.zeros(4, 24), torch.zeros(4, 1, 8), batch.cache, torch.full((4,), -1), "auto", torch.ones(1)
    )
    assert torch.equal(batch.cache, before)


def test_writing_touches_only_the_slots_named(make_batch: MakeBatch, make_dense: MakeImpl) -> None:
    batch = make_batch([(0, 40)], block_size=16, strided=True)
    raw = torch.as_strided(batch.cache, (batch.cache.untyped_storage().nbytes() // 4,), (1,), 0)

    batch.write(make_dense(), 0, 5, 20)

    page_start = batch.cache.storage_offset()
    touched = {
        page_start + int(slot // 16) * batch.cache.stride(0) + int(slot % 16) * 32 + column
        for slot in batch.slots(0, 5, 20)
        for column in range(32)
    }
    assert {int(i) for i in (raw != 1).nonzero()} == touched


@pytest.mark.parametrize(
    ("setting", "value"),
    [("kv_cache_dtype", "fp8"), ("sliding_window", 128), ("logits_soft_cap", 30.0)],
)
def test_what_is_not_supported_is_refused(make_dense: MakeImpl, setting: str, value: object) -> None:
    with pytest.raises(NotImplementedError, match=setting):
        make_dense(**{setting: value})
