"""The toy model on one rank of a world of stages, with the real runtime, storage, tracker and transport."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from dist.toy import BLOCK_TOKENS, NUM_BLOCKS, Bytes, Hidden, Step, embed, run_stage
from kvply.config import PayloadKind
from kvply.errors import ExchangeError
from kvply.kvpp.group import check_agreement
from kvply.kvpp.history import HistoryTracker
from kvply.kvpp.payload import PayloadPlanner
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.runtime import KvppRuntime
from kvply.layout.bundle import Bundle, Component
from kvply.observe.metrics import RankCounters, StepCounters
from kvply.testing.faults import FaultScript, FaultyExchange
from kvply.testing.transport_suite import Build, RankEnd

FIRST_LAYER = 3
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """stages: page bytes of each component of each layer of each stage. The world is divided evenly.

    corrupt: (step, ordinal) at which one byte of history is flipped on every rank that does not own the layer.
    """

    build: Build
    payload: PayloadKind
    stages: tuple[tuple[tuple[int, ...], ...], ...]
    steps: tuple[Step, ...]
    corrupt: tuple[int, int] | None = None
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Result:
    """outputs: of this rank's stage, step by step. owned: final bytes by layer. position: where it stopped."""

    outputs: list[list[Hidden]]
    owned: dict[int, Bytes]
    counters: StepCounters
    error: tuple[type[ExchangeError], str] | None
    position: str


def run_cases(rank: int, cases: Sequence[Case]) -> list[Result]:
    results = []
    for case in cases:
        results.append(_Rank(rank, case, None).run())
        dist.barrier()
    return results


def run_with_faults(rank: int, case: Case, script: FaultScript) -> Result:
    return _Rank(rank, case, script).run()


class _Rank:
    def __init__(self, rank: int, case: Case, script: FaultScript | None) -> None:
        self._case = case
        num_stages = len(case.stages)
        self._group_size = dist.get_world_size() // num_stages
        self._global_rank, self._stage = rank, rank // self._group_size
        first = FIRST_LAYER + sum(len(stage) for stage in case.stages[: self._stage])
        self._layers = range(first, first + len(case.stages[self._stage]))
        group = self._new_group(num_stages)
        self._plan = StagePlan.build(
            self._group_size, [_bundle(x, p) for x, p in zip(self._layers, case.stages[self._stage], strict=True)]
        )
        check_agreement(group, self._plan.fingerprint, timeout_s=case.timeout_s)
        self._rank = dist.get_rank(group)
        self._end: RankEnd = case.build(group, self._plan, NUM_BLOCKS, case.timeout_s)
        exchange = self._end.exchange if script is None else FaultyExchange(self._end.exchange, script, self._rank)
        self._counters = RankCounters()
        payloads = PayloadPlanner(case.payload, NUM_BLOCKS, cost_bytes=exchange.cost_bytes)
        self._runtime = KvppRuntime(self._plan, self._end.storage, exchange, payloads, self._counters)
        self._tracker = HistoryTracker(NUM_BLOCKS, BLOCK_TOKENS)

    def run(self) -> Result:
        outputs: list[list[Hidden]] = []
        error = None
        try:
            outputs.extend(self._run_step(index) for index in range(len(self._case.steps)))
        except ExchangeError as raised:
            error = (type(raised), str(raised))
        position = self._runtime.position
        self._runtime.close()
        owned = {
            self._plan.bundles[o].layer: self._end.storage.bundle(o).numpy().copy()
            for o in self._plan.owned_ordinals(self._rank)
        }
        return Result(outputs, owned, self._counters.total, error, position)

    def _run_step(self, index: int) -> list[Hidden]:
        step = self._case.steps[index]
        history = self._tracker.advance([row.scheduled for row in step.rows], step.finished)
        self._tracker.check_integrity()
        self._runtime.begin_step(history, cache_written_before_forward=index % 5 == 4)
        hidden = self._receive(step)

        def cache_of(ordinal: int) -> list[Bytes]:
            self._runtime.before_layer(ordinal)
            components = self._components(ordinal)
            if self._case.corrupt == (index, ordinal) and self._plan.owners[ordinal] != self._rank:
                components[0][history.runs[0][0], 0, 0] ^= 1
            self._runtime.before_layer(ordinal)  # the second hook of the same layer
            return components

        hidden = run_stage(self._layers, step, hidden, cache_of)
        self._runtime.end_step()
        self._send(hidden)
        return hidden

    def _components(self, ordinal: int) -> list[Bytes]:
        layout = self._end.storage.layout
        regions = layout.component_regions(self._plan.bundles[ordinal], layout.region(ordinal))
        arena = self._end.storage.arena.numpy()
        shape = (NUM_BLOCKS, BLOCK_TOKENS, -1)
        return [arena[region.offset_bytes : region.end_bytes].reshape(shape) for _, region in regions]

    def _new_group(self, num_stages: int) -> dist.ProcessGroup:
        size, timeout = self._group_size, timedelta(seconds=self._case.timeout_s)
        groups = [
            dist.new_group(list(range(stage * size, (stage + 1) * size)), timeout=timeout)
            for stage in range(num_stages)
        ]
        return groups[self._stage]

    def _receive(self, step: Step) -> list[Hidden]:
        hidden = [torch.from_numpy(embed(row.tokens)) for row in step.rows]
        if self._stage:
            for x in hidden:
                dist.recv(x, self._global_rank - self._group_size)
        return [x.numpy() for x in hidden]

    def _send(self, hidden: Sequence[Hidden]) -> None:
        if self._stage + 1 < len(self._case.stages):
            for x in hidden:
                dist.send(torch.from_numpy(x), self._global_rank + self._group_size)


def _bundle(layer: int, pages: Sequence[int]) -> Bundle:
    return Bundle.of(layer, [Component(f"layers.{layer}.{i}", page) for i, page in enumerate(pages)])
