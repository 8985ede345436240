"""A play written in advance: what every layer stores and has to read, whichever rank runs it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvply.kvpp.history import HistoryTracker, ScheduledRequest, StepHistory
from kvply.kvpp.payload import Ranges
from kvply.testing.virtual_device.cells import cells_of
from kvply.testing.virtual_device.scene import Scene
from kvply.testing.virtual_device.trace import Tags


@dataclass(frozen=True, slots=True)
class RequestWork:
    """Tokens `[num_computed_tokens, num_computed_tokens + num_new_tokens)` of a request run in this step."""

    block_ids: tuple[int, ...]
    num_computed_tokens: int
    num_new_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a scheduler hands out for one step.

    copies: (source, target) blocks, copied in every layer before the forward. zeroed: blocks cleared before it.
    """

    scheduled: tuple[ScheduledRequest, ...]
    finished_ids: tuple[str, ...]
    work: tuple[RequestWork, ...]
    copies: tuple[tuple[int, int], ...] = ()
    zeroed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LayerScript:
    """Byte ranges relative to the layer's bundle. Before the forward: clear, then copy; in it: store, then read."""

    clears: Ranges
    clear_tags: Tags
    copies: tuple[tuple[Ranges, Ranges], ...]
    stores: Ranges
    store_tags: Tags
    reads: Ranges
    expected: Tags


@dataclass(frozen=True, slots=True)
class StepScript:
    """zeroed: blocks cleared in every layer before the forward."""

    history: StepHistory
    layers: tuple[LayerScript, ...]
    zeroed: tuple[int, ...]

    @property
    def cache_written_before_forward(self) -> bool:
        return bool(self.layers[0].clears or self.layers[0].copies)


class ScriptWriter:
    """Keeps one ideal, never shared copy of every layer's cache, and notes what a right machine would see.

    A tag names the store that wrote a cell and the cell's place in the bundle, so both stale and misplaced
    bytes are seen.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._ideal = [np.zeros(scene.num_cells(o), dtype=np.int64) for o in range(scene.plan.num_layers)]
        self._tracker = HistoryTracker(scene.num_blocks, scene.block_size_tokens)
        self._stride = max(ideal.size for ideal in self._ideal)
        self._num_stores = 0

    def write(self, steps: Sequence[StepPlan]) -> tuple[StepScript, ...]:
        return tuple(self._step(step) for step in steps)

    def _step(self, step: StepPlan) -> StepScript:
        history = self._tracker.advance(step.scheduled, step.finished_ids)
        layers = tuple(self._layer(ordinal, step) for ordinal in range(self._scene.plan.num_layers))
        return StepScript(history, layers, step.zeroed)

    def _layer(self, ordinal: int, step: StepPlan) -> LayerScript:
        scene, bundle, ideal = self._scene, self._scene.plan.bundles[ordinal], self._ideal[ordinal]
        clears = tuple(r for block in step.zeroed for r in scene.block_ranges(bundle, block))
        clear_tags = self._store(ordinal, clears)
        copies = tuple(
            (scene.block_ranges(bundle, source), scene.block_ranges(bundle, target))
            for source, target in step.copies
        )
        for source_ranges, target_ranges in copies:
            ideal[self._cells(target_ranges)] = ideal[self._cells(source_ranges)]
        stores = tuple(r for work in step.work for r in self._new_ranges(ordinal, work))
        store_tags = self._store(ordinal, stores)
        reads = tuple(r for work in step.work for r in self._read_ranges(ordinal, work))
        # A kernel may load a new block whole and mask what lies beyond the tokens: it has to find zeroes there.
        used = {block for work in step.work for block in work.block_ids}
        reads += tuple(r for b in step.zeroed if b in used for r in scene.block_ranges(bundle, b))
        return LayerScript(clears, clear_tags, copies, stores, store_tags, reads, ideal[self._cells(reads)])

    def _store(self, ordinal: int, ranges: Ranges) -> Tags:
        self._num_stores += 1
        cells = self._cells(ranges)
        ideal = self._ideal[ordinal]
        ideal[cells] = self._num_stores * self._stride + cells
        return ideal[cells]

    def _new_ranges(self, ordinal: int, work: RequestWork) -> Ranges:
        stop = work.num_computed_tokens + work.num_new_tokens
        return self._ranges(ordinal, work.block_ids, work.num_computed_tokens, stop)

    def _read_ranges(self, ordinal: int, work: RequestWork) -> Ranges:
        return self._ranges(ordinal, work.block_ids, 0, work.num_computed_tokens + work.num_new_tokens)

    def _ranges(self, ordinal: int, block_ids: Sequence[int], start: int, stop: int) -> Ranges:
        """Bytes of tokens `[start, stop)` of a request."""
        size, bundle = self._scene.block_size_tokens, self._scene.plan.bundles[ordinal]
        found: list[tuple[int, int]] = []
        for index, block in enumerate(block_ids):
            first, last = max(start, index * size), min(stop, (index + 1) * size)
            if first < last:
                found += self._scene.token_ranges(bundle, block, first - index * size, last - index * size)
        return tuple(found)

    def _cells(self, ranges: Ranges) -> Tags:
        return cells_of(ranges, self._scene.cell_bytes)
