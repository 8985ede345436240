"""What each rank's process does in the transport suite: play a scenario and look at every byte.

All ranks derive the same contents from the same seed, so each knows what the owner's bytes are without being
told; what it has itself is noise of its own until a transfer brings the truth.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch.distributed as dist

from kvply.config import PayloadKind
from kvply.errors import ExchangeError
from kvply.kvpp.exchange.base import Exchange, Ticket, Transfer
from kvply.kvpp.history import StepHistory
from kvply.kvpp.payload import PayloadPlanner
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.storage import RankStorage
from kvply.layout.bundle import Bundle, Component
from kvply.testing.faults import FaultScript, FaultyExchange

Runs = tuple[tuple[int, int], ...]

# Layers do not start at 0, so that a layer taken for an ordinal shows.
FIRST_LAYER = 10

_MAX_PAUSE_S = 1e-3


@dataclass(frozen=True, slots=True)
class RankEnd:
    """One rank's storage and its end of the transport; the exchange moves bytes of this storage."""

    storage: RankStorage
    exchange: Exchange


Build = Callable[[dist.ProcessGroup, StagePlan, int, float], RankEnd]
"""(group of this rank, plan, num_blocks, timeout_s) -> RankEnd; collective over the group."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """pages: page bytes of each component of each layer. steps: runs of blocks with history, step by step."""

    name: str
    pages: tuple[tuple[int, ...], ...]
    num_blocks: int
    payload: PayloadKind
    steps: tuple[Runs, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """How a survivor learned of a lost peer: the error, and seconds spent in the `wait` that raised it."""

    kind: type[ExchangeError]
    message: str
    waited_s: float


def play_all(rank: int, build: Build, scenarios: Sequence[Scenario], timeout_s: float) -> dict[str, list[str]]:
    """Complaints of this rank per scenario name; all empty if the transport is right."""
    return {s.name: _Player(rank, build, s, timeout_s).complaints() for s in scenarios}


def play_until_lost(
    rank: int, build: Build, scenario: Scenario, timeout_s: float, script: FaultScript
) -> Loss | None:
    """Play under a fault script; what this rank was told, or None if it came through all steps."""
    return _Player(rank, build, scenario, timeout_s, script).loss()


class _Player:
    """One rank in one scenario. `truth[ordinal]` is what the owner of the bundle must have at this moment."""

    def __init__(
        self, rank: int, build: Build, scenario: Scenario, timeout_s: float, script: FaultScript | None = None
    ) -> None:
        num_ranks = dist.get_world_size()
        group = dist.new_group(list(range(num_ranks)), timeout=timedelta(seconds=timeout_s))
        assert isinstance(group, dist.ProcessGroup)
        bundles = [_bundle(FIRST_LAYER + i, pages) for i, pages in enumerate(scenario.pages)]
        self._rank = rank
        self._scenario = scenario
        self._plan = StagePlan.build(num_ranks, bundles)
        self._end = build(group, self._plan, scenario.num_blocks, timeout_s)
        self._exchange = self._end.exchange
        if script is not None:
            self._exchange = FaultyExchange(self._exchange, script, rank)
        self._payloads = PayloadPlanner(scenario.payload, scenario.num_blocks)
        self._pauses = np.random.default_rng(rank)
        self._shared = np.random.default_rng(len(bundles))
        self._complaints: list[str] = []
        self._fill()

    def complaints(self) -> list[str]:
        for step in range(len(self._scenario.steps)):
            self._play_step(step)
        self._exchange.close()
        self._exchange.close()  # idempotent
        dist.barrier()
        return self._complaints

    def loss(self) -> Loss | None:
        begin_s = time.monotonic()
        try:
            for step in range(len(self._scenario.steps)):
                begin_s = time.monotonic()
                self._play_step(step)
        except ExchangeError as error:
            waited_s = time.monotonic() - begin_s
            self._exchange.close()
            return Loss(type(error), str(error), waited_s)
        return None

    def _fill(self) -> None:
        arena = self._end.storage.arena.numpy()
        arena[:] = np.random.default_rng((1, self._rank)).integers(0, 256, arena.size, dtype=np.uint8)
        self._truth = []
        for ordinal, bundle in enumerate(self._plan.bundles):
            size_bytes = bundle.size_bytes(self._scenario.num_blocks)
            truth = np.random.default_rng((2, ordinal)).integers(0, 256, size_bytes, dtype=np.uint8)
            self._truth.append(truth)
            if self._plan.owners[ordinal] == self._rank:
                self._buffer(ordinal)[:] = truth

    def _play_step(self, step: int) -> None:
        runs = self._scenario.steps[step]
        history = StepHistory(runs, sum(stop - start for start, stop in runs), {})
        self._payloads.open(history)
        under_way = self._start(step, 0)
        for ordinal in range(self._plan.num_layers):
            ticket, before = under_way
            self._exchange.wait(ticket)
            if ordinal + 1 < self._plan.num_layers:
                under_way = self._start(step, ordinal + 1)
            self._check(ticket.transfer, before)
            time.sleep(self._pauses.random() * _MAX_PAUSE_S)
            self._compute(ordinal)

    def _start(self, step: int, ordinal: int) -> tuple[Ticket, np.ndarray]:
        """Start a transfer; also returns what was in the buffer before it."""
        bundle = self._plan.bundles[ordinal]
        buffer = self._end.storage.bundle(ordinal)
        before = buffer.numpy().copy()
        owner, payload = self._plan.owners[ordinal], self._payloads.payload(bundle)
        transfer = Transfer(step, ordinal, bundle.layer, owner, buffer, payload)
        return self._exchange.start(transfer), before

    def _check(self, transfer: Transfer, before: np.ndarray) -> None:
        """In the payload the owner's bytes, everywhere else what was there before."""
        expected = before
        if transfer.owner == self._rank:
            expected = self._truth[transfer.ordinal]
        else:
            for start, stop in transfer.payload.ranges:
                expected[start:stop] = self._truth[transfer.ordinal][start:stop]
        wrong = np.flatnonzero(expected != transfer.buffer.numpy())
        if wrong.size:
            self._complaints.append(
                f"rank {self._rank}, step {transfer.step}, layer {transfer.layer} of owner {transfer.owner}: "
                f"{wrong.size} of {expected.size} bytes are wrong, from byte {wrong[0]}"
            )

    def _compute(self, ordinal: int) -> None:
        """Every rank writes the same new bytes to half of the layer, at once: only the owner's will last."""
        truth = self._truth[ordinal]
        start = int(self._shared.integers(truth.size))
        flips = self._shared.integers(1, 256, dtype=np.uint8)
        for part in (slice(start, start + truth.size // 2), slice(0, max(0, start - truth.size // 2))):
            self._buffer(ordinal)[part] ^= flips
            truth[part] ^= flips

    def _buffer(self, ordinal: int) -> np.ndarray:
        return self._end.storage.bundle(ordinal).numpy()


def _bundle(layer: int, pages: Sequence[int]) -> Bundle:
    return Bundle.of(layer, [Component(f"layers.{layer}.cache.{i}", p) for i, p in enumerate(pages)])
