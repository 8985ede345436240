"""The checkers are strong enough: take out any single wait or event, and one of them notices.

Every mutation is a part of the cast, replaced; `Hits` proves that the replaced part was really used.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kvply.config import PayloadKind
from kvply.kvpp.exchange.base import Ticket, Transfer, WaitReport
from kvply.kvpp.exchange.stream import StreamExchange, StreamTicket
from kvply.kvpp.history import StepHistory
from kvply.kvpp.payload import PayloadPlanner, Ranges
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.runtime import KvppRuntime
from kvply.kvpp.storage import StorageLayout
from kvply.layout.arena import Region
from kvply.testing.virtual_device import (
    Cast,
    RandomWorkload,
    Recording,
    Rule,
    ScriptWriter,
    check,
    play,
    unequal_scene,
)
from kvply.testing.virtual_device.checker import check_order
from kvply.testing.virtual_device.lane import VirtualLane
from kvply.testing.virtual_device.rendezvous import match
from kvply.testing.virtual_device.trace import Position, Record, Stream, Wait

FULL, ACTIVE = PayloadKind.FULL, PayloadKind.ACTIVE


class Hits:
    def __init__(self) -> None:
        self.count = 0


def at_all_ranks(_rank: int, _owner: int) -> bool:
    return True


def at_owner(rank: int, owner: int) -> bool:
    return rank == owner


def at_receivers(rank: int, owner: int) -> bool:
    return rank != owner


def at_one_receiver(rank: int, owner: int) -> bool:
    return rank != owner and rank == 2


Side = Callable[[int, int], bool]


def no_ready_wait(hits: Hits, side: Side) -> Cast:
    class Exchange(StreamExchange[Position]):
        def start(self, transfer: Transfer) -> Ticket:
            if not side(self.rank, transfer.owner):
                return super().start(transfer)
            hits.count += 1
            self._carry(transfer)
            return StreamTicket(transfer, None, self._lane.record_transfer())

    return Cast(exchange=Exchange)


def no_done_wait(hits: Hits, side: Side) -> Cast:
    class Exchange(StreamExchange[Position]):
        def wait(self, ticket: Ticket) -> WaitReport:
            if not side(self.rank, ticket.transfer.owner):
                return super().wait(ticket)
            hits.count += 1
            return WaitReport(0.0, 0.0)

    return Cast(exchange=Exchange)


def ready_recorded_one_transfer_ago(hits: Hits) -> Cast:
    class Lane(VirtualLane):
        before: Position | None = None

        def record_compute(self) -> Position:
            now = super().record_compute()
            stale, self.before = self.before or now, now
            hits.count += stale is not now
            return stale

    return Cast(lane=Lane)


def done_recorded_before_the_data(hits: Hits) -> Cast:
    class Exchange(StreamExchange[Position]):
        def start(self, transfer: Transfer) -> Ticket:
            hits.count += 1
            self._lane.transfer_waits(self._lane.record_compute())
            done = self._lane.record_transfer()
            self._carry(transfer)
            return StreamTicket(transfer, None, done)

    return Cast(exchange=Exchange)


def runtime_never_waits(hits: Hits) -> Cast:
    class Runtime(KvppRuntime):
        def _finish(self, _step: Any, _ticket: Ticket) -> None:
            hits.count += 1

    return Cast(runtime=Runtime)


def runtime_skips_one_layer(hits: Hits) -> Cast:
    class Runtime(KvppRuntime):
        def _finish(self, step: Any, ticket: Ticket) -> None:
            if ticket.transfer.ordinal == 3:
                hits.count += 1
            else:
                super()._finish(step, ticket)

    return Cast(runtime=Runtime)


def two_layers_early(hits: Hits) -> Cast:
    class Runtime(KvppRuntime):
        early: Ticket | None = None

        def _start(self, step: Any, ordinal: int) -> Ticket:
            ticket = self.early or super()._start(step, ordinal)
            self.early = None
            if ordinal + 1 < self._plan.num_layers:
                hits.count += 1
                self.early = super()._start(step, ordinal + 1)
            return ticket

    return Cast(runtime=Runtime)


def ignores_writes_before_forward(hits: Hits) -> Cast:
    class Runtime(KvppRuntime):
        def begin_step(self, history: StepHistory, **written: Any) -> None:
            hits.count += written.pop("cache_written_before_forward") and history.needs_broadcast
            super().begin_step(history, **written)

    return Cast(runtime=Runtime)


def scratch_not_zeroed(hits: Hits) -> Cast:
    class Runtime(KvppRuntime):
        def begin_step(self, history: StepHistory, **written: Any) -> None:
            hits.count += bool(written.pop("zeroed_runs"))
            super().begin_step(history, **written)

    return Cast(runtime=Runtime)


def scratch_zeroed_too_late(hits: Hits) -> Cast:
    class Runtime(KvppRuntime):
        def _start(self, step: Any, ordinal: int) -> Ticket:
            runs, step.zeroed_runs = step.zeroed_runs, ()
            ticket = super()._start(step, ordinal)
            step.zeroed_runs = runs
            hits.count += bool(runs)
            self._storage.zero_scratch(ordinal, runs)
            return ticket

    return Cast(runtime=Runtime)


def broadcasts_without_history(hits: Hits) -> Cast:
    class Runtime(KvppRuntime):
        def begin_step(self, history: StepHistory, **written: Any) -> None:
            if not history.needs_broadcast:
                hits.count += 1
                history = dataclasses.replace(history, runs=((0, 1),), num_history_blocks=1)
            super().begin_step(history, **written)

    return Cast(runtime=Runtime)


def rank_local_history(hits: Hits) -> Cast:
    """One rank decides by itself that a step has no history."""

    def make(plan: StagePlan, storage, exchange, payloads, counters) -> KvppRuntime:  # type: ignore[no-untyped-def]
        is_odd_one = storage.layout.rank == 1

        class Runtime(KvppRuntime):
            def begin_step(self, history: StepHistory, **written: Any) -> None:
                if is_odd_one and history.needs_broadcast:
                    hits.count += 1
                    history = dataclasses.replace(history, num_history_blocks=0)
                super().begin_step(history, **written)

        return Runtime(plan, storage, exchange, payloads, counters)

    return Cast(runtime=make)


def one_scratch_slot(hits: Hits) -> Cast:
    class Layout(StorageLayout):
        def region(self, ordinal: int) -> Region:
            region = super().region(ordinal)
            if region.offset_bytes != self.scratch[1].offset_bytes:
                return region
            hits.count += 1
            return Region(self.scratch[0].offset_bytes, region.size_bytes)

    return Cast(layout=Layout)


def smaller_staging_on_one_rank(hits: Hits) -> Cast:
    def make(lane: VirtualLane, rank: int, size: int, staging: torch.Tensor) -> StreamExchange[Position]:
        hits.count += rank == 1
        return StreamExchange(lane, rank, size, staging[: staging.numel() // 2] if rank == 1 else staging)

    return Cast(exchange=make)


def _changed_transfers(hits: Hits, change: Callable[[StreamExchange[Position], Transfer], Transfer]) -> Cast:
    class Exchange(StreamExchange[Position]):
        def start(self, transfer: Transfer) -> Ticket:
            changed = change(self, transfer)
            hits.count += changed is not transfer
            return super().start(changed)

    return Cast(exchange=Exchange)


def other_owner_on_one_rank(hits: Hits) -> Cast:
    def change(exchange: StreamExchange[Position], transfer: Transfer) -> Transfer:
        return dataclasses.replace(transfer, owner=(transfer.owner + 1) % 3) if exchange.rank == 1 else transfer

    return _changed_transfers(hits, change)


def other_batch_order_on_one_rank(hits: Hits) -> Cast:
    def change(exchange: StreamExchange[Position], transfer: Transfer) -> Transfer:
        payload = transfer.payload
        if exchange.rank != 1 or len(payload.ranges) < 2:
            return transfer
        payload = dataclasses.replace(payload, ranges=payload.ranges[::-1])
        return dataclasses.replace(transfer, payload=payload)

    return _changed_transfers(hits, change)


def last_range_not_sent(hits: Hits) -> Cast:
    """Alike on all ranks, and perfectly ordered: only the values are wrong."""

    def change(_exchange: StreamExchange[Position], transfer: Transfer) -> Transfer:
        payload = dataclasses.replace(transfer.payload, ranges=transfer.payload.ranges[:-1])
        return dataclasses.replace(transfer, payload=payload) if payload.ranges else transfer

    return _changed_transfers(hits, change)


def full_tokens_only(hits: Hits) -> Cast:
    """History rounded down to whole blocks: the half-filled last block of a request does not move."""

    class Payloads(PayloadPlanner):
        def open(self, history: StepHistory) -> None:
            runs = tuple((start, stop - 1) for start, stop in history.runs if stop - start > 1)
            hits.count += runs != history.runs
            super().open(dataclasses.replace(history, runs=runs) if runs else history)

    return Cast(payloads=lambda scene, _rank: Payloads(scene.payload, scene.num_blocks))


def not_unpacked(hits: Hits) -> Cast:
    class Lane(VirtualLane):
        def unpack(self, _staged: torch.Tensor, _ranges: Ranges, _buffer: torch.Tensor) -> None:
            hits.count += 1

    return Cast(lane=Lane)


def packed_too_late(hits: Hits) -> Cast:
    """The owner's staging goes out with what it held before."""

    class Lane(VirtualLane):
        late: tuple[torch.Tensor, Ranges, torch.Tensor] | None = None

        def pack(self, buffer: torch.Tensor, ranges: Ranges, staged: torch.Tensor) -> None:
            hits.count += 1
            self.late = buffer, ranges, staged

        def broadcast(self, data: torch.Tensor, owner: int) -> None:
            super().broadcast(data, owner)
            if self.late is not None:
                super().pack(*self.late)
                self.late = None

    return Cast(lane=Lane)


@dataclass(frozen=True)
class Mutation:
    """rules: every one of them has to be reported."""

    make: Callable[[Hits], Cast]
    rules: frozenset[Rule]
    payloads: tuple[PayloadKind, ...] = (FULL, ACTIVE)
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.make.__name__


def mutation(
    make: Callable[[Hits], Cast], *rules: Rule, payloads: tuple[PayloadKind, ...] = (FULL, ACTIVE)
) -> Mutation:
    return Mutation(make, frozenset(rules), payloads)


def one_sided(make: Callable[[Hits, Side], Cast], side: Side, *rules: Rule) -> Mutation:
    name = f"{make.__name__}_{side.__name__}"
    return Mutation(lambda hits: make(hits, side), frozenset(rules), name=name)


MUTATIONS = [
    one_sided(no_ready_wait, at_all_ranks, Rule.NO_RACE, Rule.SOURCE_HELD_STILL, Rule.SLOT_AFTER_LAYER),
    one_sided(no_ready_wait, at_owner, Rule.NO_RACE, Rule.SOURCE_HELD_STILL),
    one_sided(no_ready_wait, at_receivers, Rule.NO_RACE, Rule.SLOT_AFTER_LAYER),
    one_sided(no_ready_wait, at_one_receiver, Rule.NO_RACE, Rule.SLOT_AFTER_LAYER),
    one_sided(
        no_done_wait,
        at_all_ranks,
        Rule.NO_RACE,
        Rule.CACHE_AFTER_TRANSFER,
        Rule.SOURCE_HELD_STILL,
        Rule.RIGHT_VALUE,
    ),
    one_sided(no_done_wait, at_owner, Rule.NO_RACE, Rule.CACHE_AFTER_TRANSFER, Rule.SOURCE_HELD_STILL),
    one_sided(no_done_wait, at_receivers, Rule.NO_RACE, Rule.CACHE_AFTER_TRANSFER, Rule.RIGHT_VALUE),
    one_sided(no_done_wait, at_one_receiver, Rule.NO_RACE, Rule.CACHE_AFTER_TRANSFER, Rule.RIGHT_VALUE),
    mutation(ready_recorded_one_transfer_ago, Rule.NO_RACE, Rule.SLOT_AFTER_LAYER),
    mutation(done_recorded_before_the_data, Rule.NO_RACE, Rule.CACHE_AFTER_TRANSFER, Rule.RIGHT_VALUE),
    mutation(runtime_never_waits, Rule.NO_RACE, Rule.CACHE_AFTER_TRANSFER, Rule.RIGHT_VALUE),
    mutation(runtime_skips_one_layer, Rule.NO_RACE, Rule.CACHE_AFTER_TRANSFER, Rule.RIGHT_VALUE),
    mutation(two_layers_early, Rule.NO_RACE, Rule.SLOT_AFTER_LAYER),
    mutation(one_scratch_slot, Rule.NO_RACE, Rule.SLOT_AFTER_LAYER, Rule.RIGHT_VALUE),
    mutation(ignores_writes_before_forward, Rule.NO_RACE, Rule.SOURCE_HELD_STILL),
    mutation(scratch_not_zeroed, Rule.RIGHT_VALUE),
    mutation(scratch_zeroed_too_late, Rule.NO_RACE, Rule.SLOT_AFTER_LAYER, payloads=(FULL,)),
    mutation(broadcasts_without_history, Rule.NO_NEEDLESS_BROADCAST),
    mutation(rank_local_history, Rule.COLLECTIVES_MATCH),
    mutation(smaller_staging_on_one_rank, Rule.COLLECTIVES_MATCH, payloads=(ACTIVE,)),
    mutation(other_owner_on_one_rank, Rule.COLLECTIVES_MATCH),
    mutation(other_batch_order_on_one_rank, Rule.COLLECTIVES_MATCH, payloads=(ACTIVE,)),
    mutation(last_range_not_sent, Rule.RIGHT_VALUE, payloads=(ACTIVE,)),
    mutation(full_tokens_only, Rule.RIGHT_VALUE, payloads=(ACTIVE,)),
    mutation(not_unpacked, Rule.RIGHT_VALUE, payloads=(ACTIVE,)),
    mutation(packed_too_late, Rule.RIGHT_VALUE, payloads=(ACTIVE,)),
]

CASES = [pytest.param(m, payload, id=f"{m}-{payload}") for m in MUTATIONS for payload in m.payloads]


def record(payload: PayloadKind, cast: Cast, num_steps: int = 5) -> Recording:
    """Three ranks, six unequal layers, steps of every sort (see the test of the workload itself)."""
    scene = unequal_scene(3, 6, payload)
    steps = RandomWorkload(418, scene.num_blocks, scene.block_size_tokens).steps(num_steps)
    return play(scene, ScriptWriter(scene).write(steps), cast)


@pytest.mark.parametrize("payload", [FULL, ACTIVE])
def test_nothing_is_reported_without_a_mutation(payload: PayloadKind) -> None:
    recording = record(payload, Cast())
    assert all(counters.total.broadcasts > 0 for counters in recording.counters)
    assert [str(v) for v in check(recording)] == []


@pytest.mark.parametrize(("mutation", "payload"), CASES)
def test_a_mutation_is_noticed(mutation: Mutation, payload: PayloadKind) -> None:
    hits = Hits()
    recording = record(payload, mutation.make(hits))
    assert hits.count > 0, "the mutation was never reached"
    found = {violation.rule for violation in check(recording, range(6))}
    assert mutation.rules <= found
    if Rule.NO_RACE in mutation.rules:
        assert found & {Rule.NO_TORN_ACCESS, Rule.RIGHT_VALUE}, "the explorer has to meet what the order allows"


def test_no_single_wait_of_a_trace_is_spare() -> None:
    """Each wait of the whole play is taken out alone. (With active payloads, layers may happen not to overlap.)

    Compute's wait is always needed. A transfer's is needed at least where the slot's last user is a layer of
    the same step, two before, that came from an owner too: elsewhere an earlier wait may cover it.
    """
    recording = record(FULL, Cast(), num_steps=4)
    owners, needed = recording.scene.plan.owners, 0
    collectives, _ = match(recording.trace)
    for op in [op for op in recording.trace if isinstance(op.action, Wait)]:
        rank, stream, nth = op.position
        ops = recording.trace.streams[rank, stream]
        ops[nth] = dataclasses.replace(op, action=Record())
        is_noticed = bool(check_order(recording, collectives))
        ops[nth] = op
        if stream is Stream.TRANSFER:
            assert op.label is not None
            before = op.label.ordinal - 2
            if before < 0 or rank in (owners[before], owners[before + 2]):
                continue
        assert is_noticed, f"{op} could be left out"
        needed += 1
    assert needed > 36
