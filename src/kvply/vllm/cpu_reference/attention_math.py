"""Causal attention of many query heads over one shared key row per token, in fp32.

This is MLA in its absorbed form: the cached latent row is the key, and its first columns are the value.
Each call sees one request only, so a row's result never depends on which other requests share the step.

Query rows are cut into tiles at *absolute* token positions. A tile never looks at keys beyond its own last
row, which saves about half of the work of a long prefill, and a prompt that is computed in chunks meets
mostly the same tiles as the same prompt computed at once.
"""

from collections.abc import Iterator

import torch

TILE_TOKENS = 128
"""Distance in token positions between two tile boundaries; bounds the score matrix of a step."""


def tiles(first_position: int, num_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the half-open row ranges of the tiles that cover ``num_rows`` rows from ``first_position``."""
    start = 0
    while start < num_rows:
        position = first_position + start
        end = min(num_rows, start + TILE_TOKENS - position % TILE_TOKENS)
        yield start, end
        start = end


def hide_future(scores: torch.Tensor, first_position: int) -> None:
    """Set the scores of keys after each row's own position to -inf, in place.

    Shape: [num_rows, ..., num_keys]. Row 0 is at ``first_position``, the last key is the
    last row's own.
    """
    num_rows = scores.shape[0]
    future = torch.ones(num_rows, num_rows, dtype=torch.bool).triu_(1)
    future = future.view(num_rows, *[1] * (scores.dim() - 2), num_rows)
    scores[..., first_position:].masked_fill_(future, float("-inf"))


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    *,
    scale: float,
    value_width: int,
    selected: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from the last rows of a request to all its tokens.

    Shapes: ``queries`` [num_rows, num_heads, width], ``keys`` [num_keys, width] with num_keys >= num_rows,
    ``selected`` [num_rows, k]. Returns [num_rows, num_heads, value_width] in fp32.

    ``selected`` limits each row to the listed token positions (-1 = no token). A row that lists all its
    visible tokens gets bit for bit the result of full attention, and a row that lists none gets zeros.
    Raises ValueError if a selected position is not in the request.
    """
    num_rows, num_keys = queries.shape[0], keys.shape[0]
    first_position = num_keys - num_rows
    if selected is not None:
        _check_selection(selected, num_keys)
    keys = keys.float()
    output = torch.empty(num_rows, queries.shape[1], value_width, dtype=torch.float32)
    for start, end in tiles(first_position, num_rows):
        visible = keys[: first_position + end]
        scores = _scores(queries[start:end].float(), visible, scale)
        hide_future(scores, first_position + start)
        if selected is not None:
            _hide_unselected(scores, selected[start:end])
        weights = scores.softmax(-1)
        if selected is not None:
            weights.nan_to_num_(0.0)
        output[start:end] = _weighted_values(weights, visible[:, :value_width])
    return output


def _check_selection(selected: torch.Tensor, num_keys: int) -> None:
    highest = int(selected.max()) if selected.numel() else -1
    if highest >= num_keys:
        raise ValueError(
            f"top-k position {highest} selected in a request of {num_keys} tokens; "
            "does a pipeline stage start on a layer that shares an earlier stage's index?"
        )


def _scores(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    num_rows, num_heads, width = queries.shape
    flat = queries.reshape(num_rows * num_heads, width) @ keys.t()
    return flat.mul_(scale).view(num_rows, num_heads, keys.shape[0])


def _hide_unselected(scores: torch.Tensor, selected: torch.Tensor) -> None:
    num_rows, _, num_keys = scores.shape
    # One spare column takes the "no token" entries, and later positions that the causal mask hides anyway.
    columns = torch.where(selected < 0, num_keys, selected.long()).clamp_(max=num_keys)
    hidden = torch.ones(num_rows, num_keys + 1, dtype=torch.bool).scatter_(1, columns, False)
    scores.masked_fill_(hidden[:, None, :num_keys], float("-inf"))


def _weighted_values(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    num_rows, num_heads, num_keys = weights.shape
    flat = weights.view(num_rows * num_heads, num_keys) @ values
    return flat.view(num_rows, num_heads, values.shape[1])
