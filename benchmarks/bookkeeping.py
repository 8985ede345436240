"""What KVPP's bookkeeping costs per decode step, as a function of the blocks that are allocated already.

One step is `HistoryTracker.advance`, `PayloadPlanner.open` (inside `begin_step`), `before_layer` for every layer
and `end_step`, over an exchange that moves nothing. Steady decode: every running request computes one token per
step, and in about half of the steps (`grown`) one of them begins a block. The cost must follow what changes
in a step, not what is allocated. `fragmented` is the worst there is, no two blocks being neighbours: there a step
that changes the set pays for all runs once, as does whoever moves them.

    PYTHONPATH=src python benchmarks/bookkeeping.py [--steps 400] [--layers 61]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import machine
from kvply.config import PayloadKind
from kvply.kvpp.exchange.base import Exchange, Ticket, Transfer, WaitReport
from kvply.kvpp.history import HistoryTracker, ScheduledRequest, StepHistory
from kvply.kvpp.payload import PayloadPlanner
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.runtime import KvppRuntime
from kvply.kvpp.storage import RankStorage, StorageLayout
from kvply.layout.bundle import Bundle, Component
from kvply.observe.metrics import RankCounters

BLOCK_TOKENS = 16
NUM_REQUESTS = 8
NUM_BLOCKS = 210_000
ALLOCATED = (1_000, 10_000, 100_000)
WARM_UP_STEPS = 20

Allocate = Callable[[int], list[list[int]]]


class NothingMoves(Exchange):
    """Answers at once: what is left is the bookkeeping."""

    def start(self, transfer: Transfer) -> Ticket:
        return Ticket(transfer)

    def wait(self, ticket: Ticket) -> WaitReport:
        del ticket
        return WaitReport(0.0, 0.0)

    def close(self) -> None:
        pass


class SteadyDecode:
    """NUM_REQUESTS requests that hold `allocated` blocks together and decode one token per step."""

    def __init__(self, allocated: int, allocate: Allocate) -> None:
        self._blocks = allocate(allocated)
        self._computed = [len(blocks) * BLOCK_TOKENS - 7 * i for i, blocks in enumerate(self._blocks)]
        self._num_blocks = [len(blocks) for blocks in self._blocks]
        self._free = NUM_BLOCKS + 1
        self._is_first = True

    def step(self) -> list[ScheduledRequest]:
        scheduled = []
        for i, blocks in enumerate(self._blocks):
            new = list(blocks) if self._is_first else []
            if self._computed[i] == self._num_blocks[i] * BLOCK_TOKENS:
                self._free -= 2
                self._num_blocks[i] += 1
                new.append(self._free)
            scheduled.append(ScheduledRequest(f"r{i}", new, self._computed[i], self._is_first))
            self._computed[i] += 1
        self._is_first = False
        return scheduled


def contiguous(allocated: int) -> list[list[int]]:
    """Every request in one run."""
    share = allocated // NUM_REQUESTS
    return [list(range(i * share, (i + 1) * share)) for i in range(NUM_REQUESTS)]


def fragmented(allocated: int) -> list[list[int]]:
    """No two blocks are neighbours: as many runs as blocks, the worst there is."""
    if 2 * allocated > NUM_BLOCKS:
        raise ValueError(f"{allocated} lone blocks do not fit into {NUM_BLOCKS}")
    return [list(range(2 * i, 2 * allocated, 2 * NUM_REQUESTS)) for i in range(NUM_REQUESTS)]


def runtime(num_layers: int) -> KvppRuntime:
    """A rank of two. The arena is address space only: its pages are never touched."""
    bundles = [Bundle.of(i, [Component(f"{i}.kv", 1152), Component(f"{i}.index", 144)]) for i in range(num_layers)]
    plan = StagePlan.build(2, bundles)
    layout = StorageLayout(plan, 0, NUM_BLOCKS, has_staging=False)
    storage = RankStorage(layout, torch.empty(layout.size_bytes, dtype=torch.uint8))
    return KvppRuntime(plan, storage, NothingMoves(), PayloadPlanner(PayloadKind.AUTO, NUM_BLOCKS), RankCounters())


@dataclass(frozen=True, slots=True)
class StepCost:
    """Median microseconds of `advance` and of the runtime's part, over one kind of step."""

    advance_us: float
    runtime_us: float
    num_steps: int


def measure(
    kvpp: KvppRuntime, num_layers: int, allocated: int, allocate: Allocate, steps: int
) -> dict[str, StepCost]:
    """Costs of steps that add no block to the history, and of steps that add some."""
    tracker, requests = HistoryTracker(NUM_BLOCKS, BLOCK_TOKENS), SteadyDecode(allocated, allocate)
    taken: dict[str, list[tuple[float, float]]] = {"same": [], "grown": []}
    num_before = -1
    for index in range(WARM_UP_STEPS + steps):
        scheduled = requests.step()
        begin = time.perf_counter()
        history = tracker.advance(scheduled, ())
        advanced = time.perf_counter()
        one_step(kvpp, num_layers, history)
        done = time.perf_counter()
        kind = "same" if history.num_history_blocks == num_before else "grown"
        num_before = history.num_history_blocks
        if index >= WARM_UP_STEPS:
            taken[kind].append(((advanced - begin) * 1e6, (done - advanced) * 1e6))
    return {
        kind: StepCost(statistics.median(a for a, _ in us), statistics.median(r for _, r in us), len(us))
        for kind, us in taken.items()
    }


def measure_without_history(kvpp: KvppRuntime, num_layers: int, steps: int) -> float:
    history, taken_us = StepHistory((), 0, {}), []
    for _ in range(steps):
        begin = time.perf_counter()
        one_step(kvpp, num_layers, history)
        taken_us.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(taken_us)


def one_step(kvpp: KvppRuntime, num_layers: int, history: StepHistory) -> None:
    kvpp.begin_step(history)
    for ordinal in range(num_layers):
        kvpp.before_layer(ordinal)
    kvpp.end_step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--layers", type=int, default=61)
    args = parser.parse_args()
    kvpp = runtime(args.layers)
    print(machine.describe())
    print(f"{NUM_REQUESTS} requests decode, {args.layers} layers; medians over {args.steps} steps, microseconds\n")
    row = "{:<12}{:>10}{:>8}{:>7}{:>11}{:>11}{:>11}"
    print(row.format("blocks", "allocated", "history", "steps", "advance", "runtime", "per layer"))
    bare_us = measure_without_history(kvpp, args.layers, args.steps)
    print(row.format("none", 0, "none", args.steps, "-", f"{bare_us:.1f}", f"{bare_us / args.layers:.2f}"))
    for allocate in (contiguous, fragmented):
        for allocated in ALLOCATED:
            for kind, cost in measure(kvpp, args.layers, allocated, allocate, args.steps).items():
                us = (cost.advance_us, cost.runtime_us)
                cells = [f"{us[0]:.1f}", f"{us[1]:.1f}", f"{us[1] / args.layers:.2f}"]
                print(row.format(allocate.__name__, allocated, kind, cost.num_steps, *cells))


if __name__ == "__main__":
    main()
