"""Collective exchange of CPU ranks: torch.distributed broadcasts (gloo) on the transfer thread.

A broadcast of a few hundred KiB spends most of its time waking threads up. So several are under way at a time
where nothing has to be packed.
"""

from collections import deque
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from kvply.errors import ExchangeError, ExchangeTimeoutError, PeerLostError
from kvply.kvpp.exchange.base import Transfer
from kvply.kvpp.exchange.batches import pack, split_ranges, unpack
from kvply.kvpp.exchange.host import Deadline, HostExchange
from kvply.kvpp.payload import Ranges, total_bytes

# gloo runs two collectives of a group at a time; the others wait in its queue, ready to go.
_MAX_UNDER_WAY = 4

# To torch a timeout of less than a millisecond is no timeout at all.
_MIN_WAIT_S = 2e-3

# What a broadcast costs beside its bytes, in bytes sent over loopback: threads woken up one after the other on
# both ends. Packed ones do not overlap, and copying a byte twice takes about half as long as sending it.
_DIRECT_COST_BYTES = 512 << 10
_PACKED_COST_BYTES = 1 << 20
_PACKING_SHARE = 2


@dataclass(frozen=True, slots=True)
class _Batch:
    """A broadcast under way. staged: where its ranges are packed, or None if it is sent in place."""

    work: dist.Work
    ranges: Ranges
    staged: torch.Tensor | None


class CollectiveExchange(HostExchange):
    """`group` must be used by nobody else: collectives on it are ordered by this exchange alone.

    staging: equally long on all ranks; holds one packed batch at a time. Shape: [staging bytes], uint8.
    """

    def __init__(self, group: dist.ProcessGroup, staging: torch.Tensor, timeout_s: float) -> None:
        self._group = group
        self._staging = staging
        self._global_ranks = dist.get_process_group_ranks(group)
        super().__init__(dist.get_rank(group), len(self._global_ranks), timeout_s)

    def cost_bytes(self, ranges: Ranges) -> int:
        """Bytes sent, plus what each broadcast costs by itself, plus packing."""
        cost = 0
        for packed, batch in split_ranges(ranges, self._staging.numel()):
            size_bytes = total_bytes(batch)
            cost += size_bytes
            cost += _PACKED_COST_BYTES + size_bytes // _PACKING_SHARE if packed else _DIRECT_COST_BYTES
        return cost

    def _carry(self, transfer: Transfer, deadline: Deadline) -> None:
        under_way: deque[_Batch] = deque()
        for packed, ranges in split_ranges(transfer.payload.ranges, self._staging.numel()):
            while len(under_way) == _MAX_UNDER_WAY or (packed and any(b.staged is not None for b in under_way)):
                self._finish(under_way.popleft(), transfer, deadline)
            under_way.append(self._begin(packed, ranges, transfer, deadline))
        while under_way:
            self._finish(under_way.popleft(), transfer, deadline)

    def _begin(self, packed: bool, ranges: Ranges, transfer: Transfer, deadline: Deadline) -> _Batch:
        (start, _), (_, stop) = ranges[0], ranges[-1]
        staged = self._staging[: total_bytes(ranges)] if packed else None
        if staged is not None and self.rank == transfer.owner:
            pack(transfer.buffer, ranges, staged)
        data = transfer.buffer[start:stop] if staged is None else staged
        owner = self._global_ranks[transfer.owner]
        try:
            work = dist.broadcast(data, src=owner, group=self._group, async_op=True)
        except RuntimeError as error:  # all that torch.distributed raises when a peer is gone
            raise self._explain(error, transfer, deadline) from error
        assert work is not None, "the rank is not in its own group"
        return _Batch(work, ranges, staged)

    def _finish(self, batch: _Batch, transfer: Transfer, deadline: Deadline) -> None:
        try:
            batch.work.wait(timedelta(seconds=max(deadline.remaining_s, _MIN_WAIT_S)))
        except RuntimeError as error:  # all that torch.distributed raises when a peer is late or gone
            raise self._explain(error, transfer, deadline) from error
        if batch.staged is not None and self.rank != transfer.owner:
            unpack(batch.staged, batch.ranges, transfer.buffer)

    def _explain(self, error: RuntimeError, transfer: Transfer, deadline: Deadline) -> ExchangeError:
        place = self.describe(transfer)
        if deadline.expired or "timed out" in str(error).lower():
            return ExchangeTimeoutError(f"{place}: no answer within {deadline.timeout_s:g} s ({error})")
        return PeerLostError(f"{place}: the connection failed ({error})")
