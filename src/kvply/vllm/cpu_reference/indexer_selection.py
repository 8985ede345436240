"""Which tokens of a request its query rows attend to (the arithmetic of the DSA indexer)."""

import torch

from kvply.vllm.cpu_reference.attention_math import hide_future, tiles

NO_TOKEN = -1


def select_tokens(
    queries: torch.Tensor, head_weights: torch.Tensor, keys: torch.Tensor, num_selected: int
) -> torch.Tensor:
    """Pick the best-scoring visible tokens for each of a request's last rows.

    A token's score is the sum over heads of ``weight * relu(query . key)``. Shapes: ``queries`` [num_rows,
    num_heads, head_dim], ``head_weights`` [num_rows, num_heads], ``keys`` [num_keys, head_dim].

    Returns int32 token positions [num_rows, num_selected], best first, padded with -1. Equal scores go to the
    earlier token, so that a row's selection does not depend on how its prompt was cut into chunks.
    """
    num_rows, num_keys = queries.shape[0], keys.shape[0]
    first_position = num_keys - num_rows
    selected = torch.full((num_rows, num_selected), NO_TOKEN, dtype=torch.int32)
    for start, end in tiles(first_position, num_rows):
        visible = keys[: first_position + end]
        scores = _scores(queries[start:end].float(), head_weights[start:end].float(), visible)
        hide_future(scores, first_position + start)
        ranked, positions = scores.sort(dim=-1, descending=True, stable=True)
        width = min(num_selected, ranked.shape[1])
        is_visible = ranked[:, :width] > float("-inf")
        selected[start:end, :width] = positions[:, :width].where(is_visible, NO_TOKEN).int()
    return selected


def _scores(queries: torch.Tensor, head_weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    num_rows, num_heads, width = queries.shape
    per_head = (queries.reshape(num_rows * num_heads, width) @ keys.t()).relu_()
    return torch.bmm(head_weights[:, None], per_head.view(num_rows, num_heads, keys.shape[0])).squeeze(1)
