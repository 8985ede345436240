"""What StreamExchange gives to its lane, one rank at a time."""

import pytest
import torch

from kvply.errors import PeerLostError
from kvply.kvpp.exchange.base import Transfer, WaitReport
from kvply.kvpp.exchange.stream import StreamExchange
from kvply.kvpp.payload import Payload
from kvply.testing.virtual_device.lane import VirtualLane
from kvply.testing.virtual_device.trace import Broadcast, Move, Position, Record, Stream, Trace, Wait

SIZE = 100
SCATTERED = ((0, 10), (20, 30), (40, 50))


class ClockLane(VirtualLane):
    """passed_s: when events passed; what is missing has not passed yet."""

    keeps_time = True

    def __init__(self, rank: int, trace: Trace) -> None:
        super().__init__(rank, trace)
        self.passed_s: dict[Position, float] = {}

    def elapsed_s(self, begin: Position, end: Position) -> float | None:
        if begin not in self.passed_s or end not in self.passed_s:
            return None
        return self.passed_s[end] - self.passed_s[begin]


class BrokenLane(VirtualLane):
    def broadcast(self, _data: torch.Tensor, _owner: int) -> None:
        raise RuntimeError("communicator was aborted")


def transfer(owner: int, ranges: tuple[tuple[int, int], ...] = SCATTERED) -> Transfer:
    size_bytes = sum(stop - start for start, stop in ranges)
    payload = Payload(ranges, size_bytes, size_bytes)
    buffer = torch.empty(SIZE, dtype=torch.uint8, device="meta")
    return Transfer(step=4, ordinal=1, layer=7, owner=owner, buffer=buffer, payload=payload)


def exchange_on(lane: VirtualLane, staging_bytes: int = 20) -> StreamExchange[Position]:
    return StreamExchange(lane, lane.rank, 3, torch.empty(staging_bytes, dtype=torch.uint8, device="meta"))


def actions(trace: Trace, rank: int, stream: Stream) -> list[type]:
    return [type(op.action) for op in trace.streams[rank, stream]]


def test_the_owner_packs_before_each_broadcast_and_receivers_unpack_after() -> None:
    trace = Trace(2)
    for rank in range(2):
        exchange = exchange_on(VirtualLane(rank, trace))
        exchange.wait(exchange.start(transfer(owner=0)))
    assert actions(trace, 0, Stream.TRANSFER) == [Wait, Move, Broadcast, Broadcast, Record]
    assert actions(trace, 1, Stream.TRANSFER) == [Wait, Broadcast, Move, Broadcast, Record]
    assert actions(trace, 0, Stream.COMPUTE) == actions(trace, 1, Stream.COMPUTE) == [Record, Wait]
    sent = [[op.action for op in trace.collectives(rank, Stream.TRANSFER)] for rank in range(2)]
    assert sent[0] == sent[1] == [Broadcast(0, 20), Broadcast(0, 10)]


def test_events_join_the_streams_both_ways() -> None:
    trace = Trace(1)
    exchange = exchange_on(VirtualLane(0, trace))
    exchange.wait(exchange.start(transfer(owner=0)))
    compute, transfers = trace.streams[0, Stream.COMPUTE], trace.streams[0, Stream.TRANSFER]
    assert transfers[0].action == Wait(compute[0].position)
    assert compute[1].action == Wait(transfers[-1].position)


def test_a_lane_without_a_clock_reports_zeros() -> None:
    exchange = exchange_on(VirtualLane(0, Trace(1)))
    assert exchange.wait(exchange.start(transfer(owner=0))) == WaitReport(0.0, 0.0)


def test_waits_are_reported_once_the_device_got_there() -> None:
    trace = Trace(1)
    lane = ClockLane(0, trace)
    exchange = exchange_on(lane)

    def run() -> tuple[WaitReport, Position, Position, Position]:
        ticket = exchange.start(transfer(owner=0))
        report = exchange.wait(ticket)
        recorded = [op.position for op in trace.streams[0, Stream.COMPUTE] if isinstance(op.action, Record)]
        assert ticket.began is not None
        return report, ticket.began, ticket.done, recorded[-1]

    report, *first = run()
    assert report == WaitReport(0.0, 0.0), "the device has not run yet"
    lane.passed_s.update(zip(first, (1.0, 4.0, 2.5), strict=True))
    report, *second = run()
    assert report == WaitReport(exposed_s=1.5, transfer_s=3.0)
    lane.passed_s.update(zip(second, (5.0, 6.0, 8.0), strict=True))
    report, *_ = run()
    assert report == WaitReport(exposed_s=0.0, transfer_s=1.0), "a hidden transfer is not waited for"


def test_a_broken_transport_is_named() -> None:
    exchange = exchange_on(BrokenLane(1, Trace(3)))
    place = r"KVPP rank 1 with owner rank 0, layer 7, step 4: .*aborted"
    with pytest.raises(PeerLostError, match=place):
        exchange.start(transfer(owner=0))
