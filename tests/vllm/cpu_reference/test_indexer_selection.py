"""Which tokens the indexer selects, against scores written out one by one."""

import pytest
import torch

from kvply.vllm.cpu_reference.indexer_selection import select_tokens

NUM_HEADS, HEAD_DIM = 4, 16


def random_request(num_keys: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(num_rows, NUM_HEADS, HEAD_DIM, generator=generator),
        torch.randn(num_rows, NUM_HEADS, generator=generator),
        torch.randn(num_keys, HEAD_DIM, generator=generator),
    )


def naive_ranking(query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> list[int]:
    """All tokens, best first, for one row that sees all of ``keys``; ties go to the earlier token."""
    scores = [
        sum(float(w) * max(0.0, float((q * key).sum())) for q, w in zip(query, weights, strict=True))
        for key in keys
    ]
    return sorted(range(len(scores)), key=lambda position: (-scores[position], position))


@pytest.mark.parametrize("num_selected", [1, 7, 64])
def test_selects_the_best_visible_tokens(num_selected: int) -> None:
    queries, weights, keys = random_request(num_keys=150, num_rows=40)

    selected = select_tokens(queries, weights, keys, num_selected)

    assert selected.dtype == torch.int32
    for row in range(40):
        num_visible = 110 + row + 1
        expected = naive_ranking(queries[row], weights[row], keys[:num_visible])[:num_selected]
        assert selected[row].tolist() == expected


def test_rows_with_few_tokens_are_padded() -> None:
    queries, weights, keys = random_request(num_keys=3, num_rows=3)

    selected = select_tokens(queries, weights, keys, 5)

    assert [sorted(row.tolist()) for row in selected] == [
        [-1, -1, -1, -1, 0],
        [-1, -1, -1, 0, 1],
        [-1, -1, 0, 1, 2],
    ]
    assert (selected[:, -2:] == -1).all()


def test_equal_scores_go_to_the_earlier_token() -> None:
    queries, weights, keys = random_request(num_keys=200, num_rows=200)

    selected = select_tokens(queries, weights, torch.zeros_like(keys), 4)

    assert (selected[3:] == torch.arange(4)).all()


def test_selection_does_not_depend_on_chunking() -> None:
    queries, weights, keys = random_request(num_keys=300, num_rows=300)
    at_once = select_tokens(queries, weights, keys, 32)

    for start, end in [(0, 100), (100, 101), (101, 290), (290, 300)]:
        chunk = select_tokens(queries[start:end], weights[start:end], keys[:end], 32)
        assert torch.equal(chunk, at_once[start:end])
