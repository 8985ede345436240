"""The sparse backend: dense attention masked down to a selection."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvply.vllm.cpu_reference.backends import DenseMLAImpl

MakeBatch = Callable[..., Any]
MakeImpl = Callable[..., DenseMLAImpl]
Naive = Callable[..., torch.Tensor]

SHAPES = [(0, 5), (130, 1), (40, 90), (255, 3)]


def run(batch: Any, impl: DenseMLAImpl) -> torch.Tensor:
    for index, request in enumerate(batch.requests):
        batch.write(impl, index, 0, request.seq_len)
    return impl.forward_mqa(batch.queries, batch.cache, batch.metadata(), None)[0]


def selection_rows(batch: Any, visible: Callable[[int], list[int]], width: int) -> torch.Tensor:
    """The top-k buffer for a batch, with the positions in reverse order and -1 behind them."""
    rows = []
    for request in batch.requests:
        for position in range(request.num_context, request.seq_len):
            chosen = list(reversed(visible(position)))[:width]
            rows.append(chosen + [-1] * (width - len(chosen)))
    return torch.tensor(rows, dtype=torch.int32)


def every_third(position: int) -> list[int]:
    return [p for p in range(position + 1) if p % 3 == position % 3]


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_attends_to_the_selected_tokens_only(
    make_batch: MakeBatch, make_sparse: MakeImpl, naive: Naive, block_size: int, strided: bool
) -> None:
    batch = make_batch(SHAPES, block_size=block_size, strided=strided)

    output = run(batch, make_sparse(selection_rows(batch, every_third, 96)))

    expected = torch.cat([naive(request, every_third) for request in batch.requests])
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_selecting_everything_is_dense_attention_bit_for_bit(
    make_batch: MakeBatch, make_dense: MakeImpl, make_sparse: MakeImpl, dtype: torch.dtype
) -> None:
    batch = make_batch(SHAPES, dtype=dtype)
    everything = selection_rows(batch, lambda position: list(range(position + 1)), 300)

    assert torch.equal(run(batch, make_sparse(everything)), run(batch, make_dense()))


def test_a_row_without_selection_gets_zeros(make_batch: MakeBatch, make_sparse: MakeImpl) -> None:
    batch = make_batch([(10, 4)])
    selection = selection_rows(batch, every_third, 8)
    selection[2] = -1

    output = run(batch, make_sparse(selection))

    assert torch.equal(output[2], torch.zeros_like(output[2]))
    assert output.isfinite().all()


def test_a_selection_outside_the_request_is_refused(make_batch: MakeBatch, make_sparse: MakeImpl) -> None:
    batch = make_batch([(10, 4)])
    selection = selection_rows(batch, every_third, 8)
    selection[1, 0] = 1_692_376

    with pytest.raises(ValueError, match="top-k position 1692376 selected in a request of 14 tokens"):
        run(batch, make_sparse(selection))
