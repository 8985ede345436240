"""Executes a trace in random legal orders over real memory and looks at what layers read.

Memory holds one version tag per cell. An operation takes time: at its start it samples what it reads and
spoils what it writes, at its end it looks whether either changed under it, and only then leaves its result. So
an overlap that a schedule allows is seen even if the bytes would have come out right.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from kvply.testing.virtual_device.cells import cells_of
from kvply.testing.virtual_device.play import Recording
from kvply.testing.virtual_device.rendezvous import Collective, by_position
from kvply.testing.virtual_device.trace import (
    AllReduce,
    Attend,
    Broadcast,
    Op,
    Position,
    Record,
    Store,
    Stream,
    Tags,
    Wait,
)
from kvply.testing.virtual_device.violation import Rule, Violation

# Small, so that one stream often runs far ahead of the others before another gets its turn.
_SWITCH_PROBABILITY = 0.1


@dataclass(frozen=True, slots=True)
class Device:
    """How a device treats collectives, whose kernels hold their place until the peers have come.

    num_resident: how many of them fit at once. is_launch_ordered: whether they start in the order in which the
    host gave them, across streams.
    """

    num_resident: int = 1 << 30
    is_launch_ordered: bool = False


class Explorer:
    """Holds what all schedules of one recording share."""

    def __init__(self, recording: Recording, collectives: list[Collective], device: Device | None = None) -> None:
        self.device = device or Device()
        self.launches = {
            op.position: nth
            for ops in zip(*(collective.ops for collective in collectives), strict=True)
            for nth, op in enumerate(sorted(ops, key=lambda op: op.issue))
        }
        cell_bytes = recording.scene.cell_bytes
        self.recording = recording
        self.collectives = by_position(collectives)
        self.reads = {op.position: cells_of(op.reads, cell_bytes) for op in recording.trace}
        self.writes = {op.position: cells_of(op.writes, cell_bytes) for op in recording.trace}

    def run(self, seed: int) -> list[Violation]:
        """Execute one schedule to its end, or to where nothing can go on."""
        return _Schedule(self, random.Random(seed)).run()


@dataclass(slots=True)
class _Running:
    """spoilt: the tag that stands in the cells an operation is writing."""

    sample: Tags
    spoilt: int


@dataclass(slots=True)
class _State:
    """next_nth: per stream, the operation that is running or to be started.

    in_flight: what a broadcast's owner has sent. num_launched, num_resident: collectives, per rank.
    """

    memories: list[Tags]
    next_nth: dict[tuple[int, Stream], int]
    running: dict[Position, _Running] = field(default_factory=dict)
    in_flight: dict[Position, Tags] = field(default_factory=dict)
    num_launched: Counter[int] = field(default_factory=Counter)
    num_resident: Counter[int] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)


class _Schedule:
    def __init__(self, explorer: Explorer, rng: random.Random) -> None:
        recording = explorer.recording
        cell_bytes = recording.scene.cell_bytes
        memories = [np.zeros(layout.size_bytes // cell_bytes, dtype=np.int64) for layout in recording.layouts]
        self._explorer = explorer
        self._streams = recording.trace.streams
        self._rng = rng
        self._is_rendezvous = rng.random() < 0.5
        self._num_spoilt = 0
        self._state = _State(memories, dict.fromkeys(self._streams, 0))

    def run(self) -> list[Violation]:
        stream: tuple[int, Stream] | None = None
        while stream := self._next_stream(stream):
            self._move(self._streams[stream][self._state.next_nth[stream]])
        for key, ops in self._streams.items():
            if (nth := self._state.next_nth[key]) < len(ops):
                self._report(Rule.NO_DEADLOCK, f"{ops[nth]} can never finish")
        return self._state.violations

    def _next_stream(self, current: tuple[int, Stream] | None) -> tuple[int, Stream] | None:
        """Mostly the current one; None if nothing can go on."""
        if current is not None and self._rng.random() > _SWITCH_PROBABILITY and self._can_move(current):
            return current
        ready = [key for key in self._streams if self._can_move(key)]
        return self._rng.choice(ready) if ready else None

    def _can_move(self, key: tuple[int, Stream]) -> bool:
        ops, nth = self._streams[key], self._state.next_nth[key]
        if nth == len(ops):
            return False
        op = ops[nth]
        if isinstance(op.action, Wait):
            rank, stream, nth = op.action.event
            return self._state.next_nth[rank, stream] > nth
        if not op.is_collective:
            return True
        if op.position in self._state.running:
            return self._peers_have_started(op)
        return self._may_launch(op)

    def _may_launch(self, op: Op) -> bool:
        device, state, rank = self._explorer.device, self._state, op.position.rank
        is_next = self._explorer.launches[op.position] == state.num_launched[rank]
        return state.num_resident[rank] < device.num_resident and (is_next or not device.is_launch_ordered)

    def _peers_have_started(self, op: Op) -> bool:
        """A rendezvous holds everybody until all have come; otherwise a broadcast needs the owner's data only."""
        collective = self._explorer.collectives[op.position]
        is_rendezvous = self._is_rendezvous or isinstance(op.action, AllReduce)
        needed = collective.ops if is_rendezvous else (collective.source,)
        return all(self._has_started(op) for op in needed)

    def _has_started(self, op: Op) -> bool:
        rank, stream, nth = op.position
        return op.position in self._state.running or self._state.next_nth[rank, stream] > nth

    def _move(self, op: Op) -> None:
        if op.position not in self._state.running:
            self._start(op)
            if not isinstance(op.action, Record | Wait):
                return
        self._end(op)

    def _start(self, op: Op) -> None:
        memory = self._state.memories[op.position.rank]
        self._num_spoilt += 1
        running = _Running(memory[self._explorer.reads[op.position]], -self._num_spoilt)
        self._state.running[op.position] = running
        memory[self._explorer.writes[op.position]] = running.spoilt
        if isinstance(op.action, Broadcast) and op.reads:
            self._state.in_flight[op.position] = running.sample
        self._state.num_launched[op.position.rank] += op.is_collective
        self._state.num_resident[op.position.rank] += op.is_collective

    def _end(self, op: Op) -> None:
        rank, stream, nth = op.position
        memory = self._state.memories[rank]
        running = self._state.running.pop(op.position)
        reads, writes = self._explorer.reads[op.position], self._explorer.writes[op.position]
        if (running.sample < 0).any() or (memory[reads] != running.sample).any():
            self._report(Rule.NO_TORN_ACCESS, f"bytes changed while {op} was reading them")
        if (memory[writes] != running.spoilt).any():
            self._report(Rule.NO_TORN_ACCESS, f"somebody else wrote the bytes that {op} was writing")
        if writes.size:
            memory[writes] = self._result(op, running)
        if isinstance(op.action, Attend):
            self._compare(op, op.action.expected, running.sample)
        self._state.num_resident[rank] -= op.is_collective
        self._state.next_nth[rank, stream] = nth + 1

    def _result(self, op: Op, running: _Running) -> Tags:
        if isinstance(op.action, Store):
            return op.action.tags
        if isinstance(op.action, Broadcast):
            return self._state.in_flight[self._explorer.collectives[op.position].source.position]
        return running.sample

    def _compare(self, op: Op, expected: Tags, found: Tags) -> None:
        if num_wrong := int((expected != found).sum()):
            self._report(Rule.RIGHT_VALUE, f"{op} found {num_wrong} of {expected.size} cells wrong")

    def _report(self, rule: Rule, message: str) -> None:
        self._state.violations.append(Violation(rule, message))
