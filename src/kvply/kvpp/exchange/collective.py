"""Collective exchange of CPU ranks: torch.distributed broadcasts (gloo) on the transfer thread.

Long ranges are broadcast in place; short ones are packed into a staging buffer first, so that scattered
blocks do not pay a collective's latency each. Which ranges are packed follows from the payload and the
staging size alone, so all ranks issue the same collectives.
"""

from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from kvply.errors import ExchangeError, ExchangeTimeoutError, PeerLostError
from kvply.kvpp.exchange.base import Transfer
from kvply.kvpp.exchange.host import Deadline, HostExchange

Ranges = tuple[tuple[int, int], ...]

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
            yield True, tuple(batch)
            batch, batch_bytes = [], 0
        if direct:
            yield False, ((start, stop),)
        else:
            batch.append((start, stop))
            batch_bytes += size_bytes
    if batch:
        yield len(batch) > 1, tuple(batch)


class CollectiveExchange(HostExchange):
    """`group` must be used by nobody else: collectives on it are ordered by this exchange alone."""

    def __init__(self, group: dist.ProcessGroup, staging: torch.Tensor, timeout_s: float) -> None:
        self._group = group
        self._staging = staging
        self._global_ranks = dist.get_process_group_ranks(group)
        super().__init__(dist.get_rank(group), len(self._global_ranks), timeout_s)

    def _carry(self, transfer: Transfer, deadline: Deadline) -> None:
        buffer = transfer.buffer
        for packed, ranges in split_ranges(transfer.payload.ranges, self._staging.numel()):
            if not packed:
                ((start, stop),) = ranges
                self._broadcast(buffer[start:stop], transfer, deadline)
                continue
            staged = self._staging[: sum(stop - start for start, stop in ranges)]
            if self.rank == transfer.owner:
                _pack(buffer, ranges, staged)
            self._broadcast(staged, transfer, deadline)
            if self.rank != transfer.owner:
                _unpack(staged, ranges, buffer)

    def _broadcast(self, data: torch.Tensor, transfer: Transfer, deadline: Deadline) -> None:
        try:
            work = dist.broadcast(
                data, src=self._global_ranks[transfer.owner], group=self._group, async_op=True
            )
            work.wait(timedelta(seconds=deadline.remaining_s))
        except RuntimeError as error:  # all that torch.distributed raises when a peer is late or gone
            raise self._explain(error, transfer, deadline) from error

    def _explain(self, error: RuntimeError, transfer: Transfer, deadline: Deadline) -> ExchangeError:
        place = self.describe(transfer)
        if deadline.expired or "timed out" in str(error).lower():
            return ExchangeTimeoutError(f"{place}: no answer within {deadline.timeout_s:g} s ({error})")
        return PeerLostError(f"{place}: the connection failed ({error})")


def _pack(buffer: torch.Tensor, ranges: Ranges, staged: torch.Tensor) -> None:
    torch.cat([buffer[start:stop] for start, stop in ranges], out=staged)


def _unpack(staged: torch.Tensor, ranges: Ranges, buffer: torch.Tensor) -> None:
    offset = 0
    for start, stop in ranges:
        buffer[start:stop].copy_(staged[offset : offset + stop - start])
        offset += stop - start
