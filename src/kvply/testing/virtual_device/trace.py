"""What ranks gave to their streams: operations with the memory they touch. Recorded, not executed."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvply.kvpp.payload import Ranges

Tags = npt.NDArray[np.int64]


class Stream(StrEnum):
    COMPUTE = "compute"
    TRANSFER = "transfer"


class Position(NamedTuple):
    """An operation: the `nth` (from 0) that `rank` gave to `stream`. Also the event a `Record` leaves behind."""

    rank: int
    stream: Stream
    nth: int


class Label(NamedTuple):
    """The layer an operation belongs to. Labels compare in the order of the model's execution."""

    step: int
    ordinal: int


BEFORE_FORWARD = -1
"""Ordinal of operations between the opening of a step and its first layer."""


@dataclass(frozen=True, slots=True)
class Record:
    """Passes once everything before it on its stream has finished."""


@dataclass(frozen=True, slots=True)
class Wait:
    event: Position


@dataclass(frozen=True, slots=True)
class Broadcast:
    owner: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A collective of the model itself. It couples the ranks and touches no cache."""


@dataclass(frozen=True, slots=True)
class Move:
    """Copies the bytes read, in order, to the bytes written, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """Compute writes `tags` (one per cell written)."""

    tags: Tags


@dataclass(frozen=True, slots=True, eq=False)
class Prepare(Store):
    """The runtime zeroes new blocks in a scratch slot, before the transfer of the layer that will use it."""


@dataclass(frozen=True, slots=True, eq=False)
class Attend:
    """Compute reads, and has to find `expected` (one tag per cell read)."""

    expected: Tags


Action = Record | Wait | Broadcast | AllReduce | Move | Store | Attend


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """reads, writes: half-open byte intervals of the rank's arena, in the order in which they are used.

    issue: how many operations the rank had given before, to any stream.
    """

    position: Position
    issue: int
    label: Label | None
    action: Action
    reads: Ranges
    writes: Ranges

    @property
    def is_collective(self) -> bool:
        return isinstance(self.action, Broadcast | AllReduce)

    def __str__(self) -> str:
        rank, stream, nth = self.position
        label = f" of step {self.label.step}, ordinal {self.label.ordinal}" if self.label else ""
        return f"{type(self.action).__name__}{label} (rank {rank}, {stream} #{nth})"


class Trace:
    """All operations of all ranks, by stream."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.streams: dict[tuple[int, Stream], list[Op]] = {
            (rank, stream): [] for rank in range(num_ranks) for stream in Stream
        }

    def add(
        self,
        rank: int,
        stream: Stream,
        action: Action,
        *,
        label: Label | None = None,
        reads: Ranges = (),
        writes: Ranges = (),
    ) -> Op:
        ops = self.streams[rank, stream]
        issue = sum(len(self.streams[rank, each]) for each in Stream)
        op = Op(Position(rank, stream, len(ops)), issue, label, action, reads, writes)
        ops.append(op)
        return op

    def accesses(self, rank: int, stream: Stream) -> list[Op]:
        """Operations that touch memory."""
        return [op for op in self.streams[rank, stream] if op.reads or op.writes]

    def collectives(self, rank: int, stream: Stream) -> list[Op]:
        return [op for op in self.streams[rank, stream] if op.is_collective]

    def __iter__(self) -> Iterator[Op]:
        for ops in self.streams.values():
            yield from ops
