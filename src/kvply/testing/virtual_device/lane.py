"""A lane that writes down what it is given. Memory is the rank's arena, addressed by byte offset."""

import torch

from kvply.kvpp.exchange.lane import Lane
from kvply.kvpp.payload import Ranges
from kvply.testing.virtual_device.trace import Broadcast, Label, Move, Position, Record, Stream, Trace, Wait


class VirtualLane(Lane[Position]):
    """label: stamped on the operations recorded from now on; set by whoever knows the layer."""

    def __init__(self, rank: int, trace: Trace) -> None:
        self.rank = rank
        self.label: Label | None = None
        self._trace = trace

    def record_compute(self) -> Position:
        return self._record(Stream.COMPUTE)

    def record_transfer(self) -> Position:
        return self._record(Stream.TRANSFER)

    def compute_waits(self, event: Position) -> None:
        self._trace.add(self.rank, Stream.COMPUTE, Wait(event), label=self.label)

    def transfer_waits(self, event: Position) -> None:
        self._trace.add(self.rank, Stream.TRANSFER, Wait(event), label=self.label)

    def broadcast(self, data: torch.Tensor, owner: int) -> None:
        interval, nothing = (_interval(data),), ()
        reads, writes = (interval, nothing) if self.rank == owner else (nothing, interval)
        action = Broadcast(owner, data.numel())
        self._trace.add(self.rank, Stream.TRANSFER, action, label=self.label, reads=reads, writes=writes)

    def pack(self, buffer: torch.Tensor, ranges: Ranges, staged: torch.Tensor) -> None:
        self._move(_intervals(buffer, ranges), (_interval(staged),))

    def unpack(self, staged: torch.Tensor, ranges: Ranges, buffer: torch.Tensor) -> None:
        self._move((_interval(staged),), _intervals(buffer, ranges))

    def close(self) -> None:
        """Nothing is under way: the trace is executed by others."""

    def _record(self, stream: Stream) -> Position:
        return self._trace.add(self.rank, stream, Record(), label=self.label).position

    def _move(self, reads: Ranges, writes: Ranges) -> None:
        self._trace.add(self.rank, Stream.TRANSFER, Move(), label=self.label, reads=reads, writes=writes)


def _interval(data: torch.Tensor) -> tuple[int, int]:
    start = int(data.storage_offset())
    return start, start + data.numel()


def _intervals(buffer: torch.Tensor, ranges: Ranges) -> Ranges:
    base = int(buffer.storage_offset())
    return tuple((base + start, base + stop) for start, stop in ranges)
