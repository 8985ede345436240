"""Which bytes of a bundle are broadcast in a step. Pure, and the same on every rank."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvply.config import PayloadKind
from kvply.kvpp.history import StepHistory
from kvply.layout.bundle import Bundle

# Two ranges closer than this are sent as one: below it, a further range costs more than the bytes between.
MERGE_GAP_BYTES = 32 << 10

# `auto` keeps to `active` only while it saves at least a tenth of the bytes: packing is not free.
AUTO_ACTIVE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Payload:
    """Half-open byte ranges `[start, stop)` of a bundle, sorted and disjoint, and what they are worth.

    num_bytes: bytes sent. useful_bytes: bytes of blocks that hold history.
    """

    ranges: tuple[tuple[int, int], ...]
    num_bytes: int
    useful_bytes: int


def full_payload(bundle: Bundle, num_blocks: int, num_history_blocks: int) -> Payload:
    """The whole bundle, all logical blocks."""
    size_bytes = bundle.size_bytes(num_blocks)
    return Payload(((0, size_bytes),), size_bytes, bundle.size_bytes(num_history_blocks))


def active_payload(bundle: Bundle, num_blocks: int, history: StepHistory) -> Payload:
    """Only the blocks that hold history, with small gaps between them filled."""
    offsets = bundle.component_offsets_bytes(num_blocks)
    ranges = merge_ranges(
        (offset + start * page_bytes, offset + stop * page_bytes)
        for offset, page_bytes in zip(offsets, bundle.pages, strict=True)
        for start, stop in history.runs
    )
    num_bytes = sum(stop - start for start, stop in ranges)
    return Payload(ranges, num_bytes, bundle.size_bytes(history.num_history_blocks))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join sorted ranges whose gap is at most MERGE_GAP_BYTES."""
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and start - merged[-1][1] <= MERGE_GAP_BYTES:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


class PayloadPlanner:
    """Payload of each bundle of a step; bundles with equal pages share one computation."""

    def __init__(self, kind: PayloadKind, num_blocks: int) -> None:
        self._kind = kind
        self._num_blocks = num_blocks
        self._history: StepHistory | None = None
        self._by_pages: dict[tuple[int, ...], Payload] = {}

    def open(self, history: StepHistory) -> None:
        """Start a step. Payloads of the step before are kept if its blocks were the same."""
        if self._history is None or self._history.runs != history.runs:
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
        if self._kind is PayloadKind.ACTIVE or active.num_bytes <= AUTO_ACTIVE_SHARE * full.num_bytes:
            return active
        return full
