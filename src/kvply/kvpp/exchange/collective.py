"""Collective exchange of CPU ranks: torch.distributed broadcasts (gloo) on the transfer thread."""

from datetime import timedelta

import torch
import torch.distributed as dist

from kvply.errors import ExchangeError, ExchangeTimeoutError, PeerLostError
from kvply.kvpp.exchange.base import Transfer
from kvply.kvpp.exchange.batches import pack, split_ranges, total_bytes, unpack
from kvply.kvpp.exchange.host import Deadline, HostExchange

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
            staged = self._staging[: total_bytes(ranges)]
            if self.rank == transfer.owner:
                pack(buffer, ranges, staged)
            self._broadcast(staged, transfer, deadline)
            if self.rank != transfer.owner:
                unpack(staged, ranges, buffer)

    def _broadcast(self, data: torch.Tensor, transfer: Transfer, deadline: Deadline) -> None:
        try:
            work = dist.broadcast(data, src=self._global_ranks[transfer.owner], group=self._group, async_op=True)
            work.wait(timedelta(seconds=deadline.remaining_s))
        except RuntimeError as error:  # all that torch.distributed raises when a peer is late or gone
            raise self._explain(error, transfer, deadline) from error

    def _explain(self, error: RuntimeError, transfer: Transfer, deadline: Deadline) -> ExchangeError:
        place = self.describe(transfer)
        if deadline.expired or "timed out" in str(error).lower():
            return ExchangeTimeoutError(f"{place}: no answer within {deadline.timeout_s:g} s ({error})")
        return PeerLostError(f"{place}: the connection failed ({error})")
