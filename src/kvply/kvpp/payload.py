"""Which bytes of a bundle are broadcast in a step. Pure, and the same on every rank."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from kvply.config import PayloadKind
from kvply.kvpp.history import StepHistory
from kvply.layout.bundle import Bundle

# Two ranges closer than this are sent as one: below it, a further range costs more than the bytes between.
MERGE_GAP_BYTES = 32 << 10

# `auto` keeps to `active` only while it saves at least a tenth of the cost: packing is not free.
AUTO_ACTIVE_SHARE = 0.9

# Above this many runs numpy beats a loop over them.
_MANY_RUNS = 256

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Payload:
    """Half-open byte ranges `[start, stop)` of a bundle, sorted and disjoint, and what they are worth.

    num_bytes: bytes sent. useful_bytes: bytes of blocks that hold history.
    """

    ranges: tuple[tuple[int, int], ...]
    num_bytes: int
    useful_bytes: int


def total_bytes(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def full_payload(bundle: Bundle, num_blocks: int, num_history_blocks: int) -> Payload:
    """The whole bundle, all logical blocks."""
    size_bytes = bundle.size_bytes(num_blocks)
    return Payload(((0, size_bytes),), size_bytes, bundle.size_bytes(num_history_blocks))


def active_payload(bundle: Bundle, num_blocks: int, history: StepHistory) -> Payload:
    """Only the blocks that hold history, with small gaps between them filled."""
    if len(history.runs) > _MANY_RUNS:
        places = list(zip(bundle.component_offsets_bytes(num_blocks), bundle.pages, strict=True))
        ranges = _merge_many(places, history.runs)
    else:
        ranges = merge_ranges(bundle.block_ranges(num_blocks, history.runs))
    return Payload(ranges, total_bytes(ranges), bundle.size_bytes(history.num_history_blocks))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join sorted ranges whose gap is at most MERGE_GAP_BYTES."""
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and start - merged[-1][1] <= MERGE_GAP_BYTES:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def _merge_many(places: Sequence[tuple[int, int]], runs: Ranges) -> Ranges:
    """What `merge_ranges` gives for `runs` at each place (offset, page bytes), vectorised."""
    blocks = np.fromiter(chain.from_iterable(runs), dtype=np.int64, count=2 * len(runs))
    edges = np.concatenate([offset + page_bytes * blocks for offset, page_bytes in places])
    starts, stops = edges[::2], edges[1::2]
    far = np.flatnonzero(starts[1:] - stops[:-1] > MERGE_GAP_BYTES)
    firsts, lasts = np.append(0, far + 1), np.append(far, len(stops) - 1)
    return tuple(zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True))


class PayloadPlanner:
    """Payload of each bundle of a step; bundles with equal pages share one computation.

    `active` gives way to `full` where its ranges would cost the transport more than the whole bundle.

    cost_bytes: what the transport pays for ranges, in bytes of one long range (`Exchange.cost_bytes`). Has to be
        the same function on all ranks.
    """

    def __init__(
        self, kind: PayloadKind, num_blocks: int, *, cost_bytes: Callable[[Ranges], int] = total_bytes
    ) -> None:
        self._kind = kind
        self._num_blocks = num_blocks
        self._cost_bytes = cost_bytes
        self._history: StepHistory | None = None
        self._by_pages: dict[tuple[int, ...], Payload] = {}

    def open(self, history: StepHistory) -> None:
        """Start a step. Payloads of the step before are kept if its blocks were the same."""
        before = self._history.runs if self._history is not None else None
        if before is not history.runs and before != history.runs:
            self._by_pages.clear()
        self._history = history

    def payload(self, bundle: Bundle) -> Payload:
        found = self._by_pages.get(bundle.pages)
        if found is None:
            found = self._by_pages[bundle.pages] = self._choose(bundle)
        return found

    def _choose(self, bundle: Bundle) -> Payload:
        assert self._history is not None, "payload() before open()"
        full = full_payload(bundle, self._num_blocks, self._history.num_history_blocks)
        if self._kind is PayloadKind.FULL:
            return full
        active = active_payload(bundle, self._num_blocks, self._history)
        most = 1.0 if self._kind is PayloadKind.ACTIVE else AUTO_ACTIVE_SHARE
        return active if self._cost_bytes(active.ranges) <= most * self._cost_bytes(full.ranges) else full
