"""How a payload's byte ranges are cut into collectives, and how scattered ranges are packed into staging.

Long ranges are broadcast in place; short ones are packed into a staging buffer first, so that scattered
blocks do not pay a collective's latency each. The cut follows from the payload and the staging size alone, so
all ranks issue the same collectives.
"""

from collections.abc import Iterator

import torch

from kvply.kvpp.payload import Ranges

# A gloo broadcast over loopback costs about as much as moving this many bytes.
DIRECT_MIN_BYTES = 256 << 10


def split_ranges(ranges: Ranges, staging_bytes: int) -> Iterator[tuple[bool, Ranges]]:
    """Yield (packed, ranges) batches in order: one long range in place, or several short ones to pack.

    A batch to pack never exceeds `staging_bytes`; a single range longer than that is sent in place.
    """
    batch: list[tuple[int, int]] = []
    batch_bytes = 0
    for start, stop in ranges:
        size_bytes = stop - start
        direct = size_bytes >= min(DIRECT_MIN_BYTES, staging_bytes + 1)
        if batch and (direct or batch_bytes + size_bytes > staging_bytes):
            yield len(batch) > 1, tuple(batch)
            batch, batch_bytes = [], 0
        if direct:
            yield False, ((start, stop),)
        else:
            batch.append((start, stop))
            batch_bytes += size_bytes
    if batch:
        yield len(batch) > 1, tuple(batch)


def pack(buffer: torch.Tensor, ranges: Ranges, staged: torch.Tensor) -> None:
    """Gather `ranges` of `buffer` into `staged`, which is exactly as long as they are together."""
    torch.cat([buffer[start:stop] for start, stop in ranges], out=staged)


def unpack(staged: torch.Tensor, ranges: Ranges, buffer: torch.Tensor) -> None:
    """The reverse of `pack`."""
    offset = 0
    for start, stop in ranges:
        buffer[start:stop].copy_(staged[offset : offset + stop - start])
        offset += stop - start
