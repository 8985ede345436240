"""Plays a script on every rank with the real runtime and the real stream exchange, and keeps the trace.

Ranks are played one after the other: on a device with streams the host never waits for a peer, so what one
rank enqueues cannot depend on how far another has got.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvply.kvpp.blocks import runs_of
from kvply.kvpp.exchange.base import Exchange, Ticket, Transfer, WaitReport
from kvply.kvpp.exchange.stream import StreamExchange
from kvply.kvpp.payload import PayloadPlanner, Ranges
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.runtime import KvppRuntime
from kvply.kvpp.storage import RankStorage, StorageLayout
from kvply.observe.metrics import RankCounters
from kvply.testing.virtual_device.lane import VirtualLane
from kvply.testing.virtual_device.scene import Scene
from kvply.testing.virtual_device.script import LayerScript, StepScript
from kvply.testing.virtual_device.trace import (
    BEFORE_FORWARD,
    AllReduce,
    Attend,
    Label,
    Move,
    Prepare,
    Store,
    Stream,
    Trace,
)

ExchangeFactory = Callable[[VirtualLane, int, int, torch.Tensor], Exchange]
RuntimeFactory = Callable[[StagePlan, RankStorage, Exchange, PayloadPlanner, RankCounters], KvppRuntime]
PayloadFactory = Callable[[Scene, int], PayloadPlanner]


def real_payloads(scene: Scene, _rank: int) -> PayloadPlanner:
    return PayloadPlanner(scene.payload, scene.num_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who plays the parts; the defaults are the real ones. Replace one to see that a checker notices."""

    layout: type[StorageLayout] = StorageLayout
    lane: Callable[[int, Trace], VirtualLane] = VirtualLane
    exchange: ExchangeFactory = StreamExchange
    payloads: PayloadFactory = real_payloads
    runtime: RuntimeFactory = KvppRuntime


@dataclass(frozen=True, slots=True)
class Recording:
    """layouts: of every rank, by rank. counters: what each rank's runtime counted."""

    scene: Scene
    script: tuple[StepScript, ...]
    layouts: tuple[StorageLayout, ...]
    counters: tuple[RankCounters, ...]
    trace: Trace


def play(scene: Scene, script: Sequence[StepScript], cast: Cast | None = None) -> Recording:
    cast = cast or Cast()
    trace = Trace(scene.num_ranks)
    players = [_Player(scene, rank, trace, cast) for rank in range(scene.num_ranks)]
    for player in players:
        for index, step in enumerate(script):
            player.play(index, step)
        player.runtime.close()
    layouts = tuple(player.layout for player in players)
    return Recording(scene, tuple(script), layouts, tuple(player.counters for player in players), trace)


class _LabellingExchange(Exchange):
    """Tells the lane which layer the operations of a transfer belong to."""

    def __init__(self, inner: Exchange, lane: VirtualLane) -> None:
        self._inner = inner
        self._lane = lane

    def start(self, transfer: Transfer) -> Ticket:
        self._lane.label = Label(transfer.step, transfer.ordinal)
        ticket = self._inner.start(transfer)
        self._lane.label = None
        return ticket

    def wait(self, ticket: Ticket) -> WaitReport:
        return self._inner.wait(ticket)

    def close(self) -> None:
        self._inner.close()


class _RecordingStorage(RankStorage):
    """Notes what the runtime zeroes in scratch slots. layers, index: of the step under way, set by the player."""

    layers: tuple[LayerScript, ...] = ()
    index = 0

    def __init__(self, layout: StorageLayout, arena: torch.Tensor, trace: Trace) -> None:
        super().__init__(layout, arena)
        self._trace = trace

    def zero_scratch(self, ordinal: int, runs: Sequence[tuple[int, int]]) -> None:
        if ordinal in self.layout.owned or not runs:
            return
        layer, base = self.layers[ordinal], self.layout.region(ordinal).offset_bytes
        writes = tuple((base + start, base + stop) for start, stop in layer.clears)
        label, action = Label(self.index, ordinal), Prepare(layer.clear_tags)
        self._trace.add(self.layout.rank, Stream.COMPUTE, action, label=label, writes=writes)


class _Player:
    """One rank: the model's part, which computes between the calls to the runtime."""

    def __init__(self, scene: Scene, rank: int, trace: Trace, cast: Cast) -> None:
        self._scene = scene
        self._rank = rank
        self._trace = trace
        self.layout = cast.layout(scene.plan, rank, scene.num_blocks, has_staging=True)
        arena = torch.empty(self.layout.size_bytes, dtype=torch.uint8, device="meta")
        storage = _RecordingStorage(self.layout, arena, trace)
        self._storage = storage
        lane = cast.lane(rank, trace)
        exchange = _LabellingExchange(cast.exchange(lane, rank, scene.num_ranks, storage.staging), lane)
        self.counters = RankCounters()
        payloads = cast.payloads(scene, rank)
        self.runtime = cast.runtime(scene.plan, storage, exchange, payloads, self.counters)

    def play(self, index: int, step: StepScript) -> None:
        written = step.cache_written_before_forward
        self._storage.layers, self._storage.index = step.layers, index
        self.runtime.begin_step(
            step.history, cache_written_before_forward=written, zeroed_runs=runs_of(step.zeroed)
        )
        for ordinal, layer in enumerate(step.layers):
            self._write_before_forward(Label(index, BEFORE_FORWARD), ordinal, layer)
        for ordinal, layer in enumerate(step.layers):
            self.runtime.before_layer(ordinal)
            self._compute(Label(index, ordinal), layer)
        self.runtime.end_step()

    def _write_before_forward(self, label: Label, ordinal: int, layer: LayerScript) -> None:
        """Through every layer's view, as vLLM does: on a receiver that is a scratch slot."""
        trace, at = self._trace, self._at
        if layer.clears:
            store = Store(layer.clear_tags)
            trace.add(self._rank, Stream.COMPUTE, store, label=label, writes=at(ordinal, layer.clears))
        for source, target in layer.copies:
            reads, writes = at(ordinal, source), at(ordinal, target)
            trace.add(self._rank, Stream.COMPUTE, Move(), label=label, reads=reads, writes=writes)

    def _compute(self, label: Label, layer: LayerScript) -> None:
        trace, at, rank = self._trace, self._at, self._rank
        store, attend = Store(layer.store_tags), Attend(layer.expected)
        trace.add(rank, Stream.COMPUTE, store, label=label, writes=at(label.ordinal, layer.stores))
        trace.add(rank, Stream.COMPUTE, attend, label=label, reads=at(label.ordinal, layer.reads))
        if self._scene.has_all_reduce:
            trace.add(rank, Stream.COMPUTE, AllReduce(), label=label)

    def _at(self, ordinal: int, ranges: Ranges) -> Ranges:
        """Ranges of the bundle as intervals of this rank's arena."""
        base = self.layout.region(ordinal).offset_bytes
        return tuple((base + start, base + stop) for start, stop in ranges)
