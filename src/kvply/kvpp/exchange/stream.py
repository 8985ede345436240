"""Exchange of devices with streams: broadcasts run on a transfer stream beside compute.

    compute   ... layer i-1 | ready | wait done(i) | layer i ...
    transfer                  wait ready | pack, broadcast, unpack of i+1 | done

The *ready* event orders a transfer after the compute that last used its source or scratch slot; the *done*
event orders the layer after its transfer. The host only enqueues; it never waits for the device here.

So a lost peer is not noticed here either: the deadline of a transfer is the timeout of the process group,
whose watchdog stops the process, and whoever synchronises with the device next is who stands still till then.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic

import torch

from kvply.errors import PeerLostError
from kvply.kvpp.exchange.base import Exchange, Ticket, Transfer, WaitReport
from kvply.kvpp.exchange.batches import split_ranges
from kvply.kvpp.exchange.lane import E, Lane
from kvply.kvpp.payload import total_bytes


class StreamTicket(Ticket, Generic[E]):
    """began: after the transfer stream stopped waiting for compute; only on lanes that keep time."""

    __slots__ = ("began", "done")

    def __init__(self, transfer: Transfer, began: E | None, done: E) -> None:
        super().__init__(transfer)
        self.began = began
        self.done = done


@dataclass(frozen=True, slots=True)
class _Marks(Generic[E]):
    """needed: when compute came to the wait. The transfer ran from `began` to `done`."""

    began: E
    done: E
    needed: E


class StreamExchange(Exchange, Generic[E]):
    """One rank's end. `lane` and the process group under it belong to this exchange alone.

    staging: equally long on all ranks; alive until `close`. Shape: [staging bytes], uint8.
    """

    def __init__(self, lane: Lane[E], rank: int, group_size: int, staging: torch.Tensor) -> None:
        self.rank = rank
        self.group_size = group_size
        self._lane = lane
        self._staging = staging
        self._unmeasured: deque[_Marks[E]] = deque()

    def start(self, transfer: Transfer) -> Ticket:
        lane = self._lane
        lane.transfer_waits(lane.record_compute())
        began = lane.record_transfer() if lane.keeps_time else None
        self._carry(transfer)
        return StreamTicket(transfer, began, lane.record_transfer())

    def wait(self, ticket: Ticket) -> WaitReport:
        """Enqueue the wait; never blocks.

        A device's clock can be read without blocking only once the device got there. So the report covers
        those earlier transfers that were found finished since the last report: sums are right, but late by
        as much as the device is behind. A lane that keeps no time reports zeros.
        """
        assert isinstance(ticket, StreamTicket)
        if ticket.began is not None:
            self._unmeasured.append(_Marks(ticket.began, ticket.done, self._lane.record_compute()))
        self._lane.compute_waits(ticket.done)
        return self._measure()

    def close(self) -> None:
        self._unmeasured.clear()
        self._lane.close()

    def _carry(self, transfer: Transfer) -> None:
        lane, buffer = self._lane, transfer.buffer
        for packed, ranges in split_ranges(transfer.payload.ranges, self._staging.numel()):
            if not packed:
                ((start, stop),) = ranges
                self._broadcast(buffer[start:stop], transfer)
                continue
            staged = self._staging[: total_bytes(ranges)]
            if self.rank == transfer.owner:
                lane.pack(buffer, ranges, staged)
            self._broadcast(staged, transfer)
            if self.rank != transfer.owner:
                lane.unpack(staged, ranges, buffer)

    def _broadcast(self, data: torch.Tensor, transfer: Transfer) -> None:
        try:
            self._lane.broadcast(data, transfer.owner)
        except RuntimeError as error:  # all that torch.distributed raises when a peer is gone
            raise PeerLostError(f"{self.describe(transfer)}: the broadcast failed ({error})") from error

    def _measure(self) -> WaitReport:
        exposed_s = transfer_s = 0.0
        while self._unmeasured:
            marks = self._unmeasured[0]
            waited_s = self._lane.elapsed_s(marks.needed, marks.done)
            took_s = self._lane.elapsed_s(marks.began, marks.done)
            if waited_s is None or took_s is None:
                break
            exposed_s += max(0.0, waited_s)
            transfer_s += took_s
            self._unmeasured.popleft()
        return WaitReport(exposed_s, transfer_s)
