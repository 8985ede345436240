"""A toy model whose layers read their history from a paged cache and write to it, in exact integer arithmetic.

Any wrong byte of a history block that a layer reads changes its output, and with it everything after.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvply.kvpp.history import ScheduledRequest

Bytes = npt.NDArray[np.uint8]
Hidden = npt.NDArray[np.int64]

BLOCK_TOKENS = 4
NUM_BLOCKS = 64
WIDTH = 8
_PRIME = 65_521
_BYTE_PRIME = 251
_MAX_RUNNING = 4
_CHUNK_TOKENS = 6


@dataclass(frozen=True, slots=True)
class Row:
    """A scheduled request with the tokens of the step and all of its blocks."""

    scheduled: ScheduledRequest
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    rows: tuple[Row, ...]
    finished: tuple[str, ...]


@dataclass(slots=True)
class _Request:
    name: str
    tokens: list[int]
    blocks: list[int]
    num_computed: int
    num_shared: int
    is_new: bool = True


class ToyScheduler:
    """Chunked prefill, decode, preemption, shared prefixes and reuse of freed blocks, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._uses = [0] * NUM_BLOCKS
        self._running: list[_Request] = []
        self._num_admitted = 0

    def steps(self, num_steps: int) -> tuple[Step, ...]:
        return tuple(self._step() for _ in range(num_steps))

    def _step(self) -> Step:
        finished = self._finish()
        if len(self._running) < _MAX_RUNNING and self._random.random() < 0.6:
            self._running.append(self._admit())
        if self._running and self._random.random() < 0.1:
            self._preempt(self._running[-1])
        chosen = [r for r in self._running if self._random.random() < 0.9]
        return Step(tuple(self._schedule(request) for request in chosen), finished)

    def _finish(self) -> tuple[str, ...]:
        done = [r for r in self._running if r.num_computed > 12 and self._random.random() < 0.15]
        for request in done:
            self._running.remove(request)
            self._free(request)
        return tuple(request.name for request in done)

    def _admit(self) -> _Request:
        self._num_admitted += 1
        name, tokens = f"r{self._num_admitted}", self._draw(int(self._random.integers(1, 25)))
        donors = [r for r in self._running if r.num_computed >= BLOCK_TOKENS]
        if not donors or self._random.random() < 0.5:
            return _Request(name, tokens, [], 0, 0)
        num_shared = donors[0].num_computed // BLOCK_TOKENS
        shared_tokens = num_shared * BLOCK_TOKENS
        blocks = donors[0].blocks[:num_shared]
        for block in blocks:
            self._uses[block] += 1
        return _Request(name, donors[0].tokens[:shared_tokens] + tokens, blocks, shared_tokens, num_shared)

    def _preempt(self, request: _Request) -> None:
        self._free(request)
        request.blocks, request.num_computed, request.num_shared, request.is_new = [], 0, 0, True

    def _schedule(self, request: _Request) -> Row:
        start = request.num_computed
        if start == len(request.tokens):
            request.tokens += self._draw(1)
        tokens = tuple(request.tokens[start : start + _CHUNK_TOKENS])
        known = 0 if request.is_new else len(request.blocks)
        while len(request.blocks) * BLOCK_TOKENS < start + len(tokens):
            request.blocks.append(self._allocate())
        scheduled = ScheduledRequest(request.name, tuple(request.blocks[known:]), start, request.is_new)
        request.is_new = False
        request.num_computed = start + len(tokens)
        return Row(scheduled, tokens, tuple(request.blocks))

    def _draw(self, num_tokens: int) -> list[int]:
        return [int(token) for token in self._random.integers(0, 1000, num_tokens)]

    def _allocate(self) -> int:
        free = [block for block, uses in enumerate(self._uses) if not uses]
        block = free[int(self._random.integers(len(free)))]
        self._uses[block] = 1
        return block

    def _free(self, request: _Request) -> None:
        for block in request.blocks:
            self._uses[block] -= 1


def embed(tokens: Sequence[int]) -> Hidden:
    """Shape: [tokens, WIDTH]."""
    return (np.asarray(tokens, np.int64)[:, None] * 31 + np.arange(WIDTH) * 7) % _BYTE_PRIME


def run_layer(layer: int, row: Row, hidden: Hidden, components: Sequence[Bytes]) -> Hidden:
    """Write the row's tokens to the cache, then read all of its context from it.

    components: shape [NUM_BLOCKS, BLOCK_TOKENS, entry bytes] each. hidden and result: [tokens, WIDTH].
    """
    start, num_tokens = row.scheduled.num_computed_tokens, len(row.tokens)
    positions = np.arange(start + num_tokens)
    blocks, slots = np.asarray(row.blocks)[positions // BLOCK_TOKENS], positions % BLOCK_TOKENS
    result = hidden * 5
    for index, cache in enumerate(components):
        entries = (hidden * 3 + layer + index + positions[start:, None]) % _BYTE_PRIME
        cache[blocks[start:], slots[start:]] = np.resize(entries, (num_tokens, cache.shape[2]))
        context = cache[blocks, slots].astype(np.int64) * (positions[:, None] + 1)
        sums = np.cumsum(context, axis=0)[start:] % _PRIME
        result += sums[:, :WIDTH] + sums.sum(axis=1, keepdims=True)
    return result % _PRIME


def run_stage(
    layers: Sequence[int],
    step: Step,
    hidden: Sequence[Hidden],
    cache_of: Callable[[int], Sequence[Bytes]],
) -> list[Hidden]:
    """All layers of a stage in order. `cache_of(index)` is asked once per layer, right before its first use."""
    now = list(hidden)
    for index, layer in enumerate(layers):
        components = cache_of(index)
        now = [run_layer(layer, row, x, components) for row, x in zip(step.rows, now, strict=True)]
    return now


def run_replicated(
    pages: Sequence[Sequence[int]], steps: Sequence[Step], first_layer: int
) -> tuple[list[list[Hidden]], list[Bytes]]:
    """The unsharded reference: outputs of every step, and every layer's final cache as flat bytes."""
    caches = [[np.zeros((NUM_BLOCKS, BLOCK_TOKENS, p // BLOCK_TOKENS), np.uint8) for p in layer] for layer in pages]
    layers = range(first_layer, first_layer + len(pages))
    outputs = [
        run_stage(layers, step, [embed(row.tokens) for row in step.rows], caches.__getitem__) for step in steps
    ]
    return outputs, [np.concatenate([c.ravel() for c in layer]) for layer in caches]
