"""Reading and writing token rows of one layer's paged cache.

A cache is a view of shape [num_blocks, block_size, width] with any strides: the blocks of one layer may lie
further apart than a page, and the view need not be contiguous. Nothing here therefore flattens or reshapes
the cache itself.
"""

import torch


def read_tokens(cache: torch.Tensor, block_ids: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Copy a request's first ``num_tokens`` rows out of the cache.

    ``block_ids`` lists the request's blocks in order; entries past the last needed block are ignored.
    Returns a new contiguous tensor of shape [num_tokens, width] in the cache's dtype.
    """
    block_size, width = cache.shape[1:]
    num_blocks = -(-num_tokens // block_size)
    rows = cache[block_ids[:num_blocks].long()]
    return rows.reshape(num_blocks * block_size, width)[:num_tokens]


def write_tokens(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write one row per slot into the cache, in place, converting to the cache's dtype.

    Shapes: ``slots`` [num_slots], ``rows`` [at least num_slots, width]. Slot ``block_id * block_size +
    offset`` names a token's place; negative slots are padding and are skipped.
    """
    slots = slots.flatten().long()
    is_real = slots >= 0
    rows = rows[: slots.shape[0]][is_real]
    block_ids, offsets = split_slots(slots[is_real], cache.shape[1])
    cache[block_ids, offsets] = rows.to(cache.dtype)


def split_slots(slots: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Take slot numbers apart into block ids and offsets within the block."""
    return slots // block_size, slots % block_size
