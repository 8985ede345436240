"""How fast do the CPU transports move a layer, compared with a plain memcpy of the same bytes?

Two ranks. Each round has, for every case, a train of memcpys (single thread, private memory) and a train of
transfers (as between two layers without compute), one right after the other, so that both see the same machine.
Times are the receiver's, per transfer, hand-shakes between the ranks included.

    PYTHONPATH=src python benchmarks/exchange.py [--rounds 15] [--megabytes 1 4 16 64]
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

import machine
from kvply.config import PayloadKind
from kvply.kvpp.exchange.base import Exchange, Transfer
from kvply.kvpp.exchange.collective import CollectiveExchange
from kvply.kvpp.exchange.shm import SharedFile, ShmExchange, connect
from kvply.kvpp.group import gather_integers
from kvply.kvpp.history import StepHistory
from kvply.kvpp.payload import Payload, PayloadPlanner
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.storage import RankStorage, StorageLayout
from kvply.layout.bundle import Bundle, Component
from kvply.testing.ranks import run_ranks

# Half as much as a block of 16 tokens of DeepSeek's MLA in bf16: many small blocks are the harder case.
PAGE_BYTES = 8192
TIMEOUT_S = 60.0
MIB = 1 << 20

# As many transfers in a row as make up this, but at least 2 and at most 16.
TRAIN_BYTES = 64 * MIB

# The first touches of every page are not what steady state costs.
NUM_WARM_UP = 2

# Name -> (blocks with history, of how many): the pattern repeats over the whole bundle.
PATTERNS = {"2 %": (1, 50), "25 %": (2, 8), "75 %": (33, 44), "100 %": (1, 1)}


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over rounds: of one transfer, and of one memcpy of as many bytes."""

    transport: str
    bundle_bytes: int
    case: str
    moved_bytes: int
    transfer_s: float
    memcpy_s: float


def measure(rank: int, bundle_bytes: int, rounds: int) -> list[Measured]:
    """All cases of one bundle size, as rank 1 sees them; rank 0 owns the layer."""
    num_blocks = bundle_bytes // PAGE_BYTES
    plan = StagePlan.build(2, [Bundle.of(i, [Component(f"layer.{i}", PAGE_BYTES)]) for i in range(2)])
    ends = {"shm": _shm(rank, plan, num_blocks), "collective": _collective(rank, plan, num_blocks)}
    cases = {"full": (PayloadKind.FULL, (1, 1))}
    cases |= {f"active {share}": (PayloadKind.ACTIVE, pattern) for share, pattern in PATTERNS.items()}
    payloads = {
        (name, case): _payload(plan, num_blocks, kind, pattern, exchange)
        for name, (_, exchange) in ends.items()
        for case, (kind, pattern) in cases.items()
    }
    count = min(max(TRAIN_BYTES // bundle_bytes, 2), 16)
    source, target = np.ones(bundle_bytes, np.uint8), np.zeros(bundle_bytes, np.uint8)
    transfer_s: dict[tuple[str, str], list[float]] = {key: [] for key in payloads}
    memcpy_s: dict[tuple[str, str], list[float]] = {key: [] for key in payloads}
    for index in range(NUM_WARM_UP + rounds):
        for key, payload in payloads.items():
            copied_s = _time_memcpy(source[: payload.num_bytes], target[: payload.num_bytes], count)
            moved_s = _time_transfers(*ends[key[0]], payload, count)
            if index >= NUM_WARM_UP:
                memcpy_s[key].append(copied_s)
                transfer_s[key].append(moved_s)
    for _, exchange in ends.values():
        exchange.close()
    dist.barrier()
    return [
        Measured(
            name, bundle_bytes, case, payload.num_bytes,
            statistics.median(transfer_s[name, case]), statistics.median(memcpy_s[name, case]),
        )
        for (name, case), payload in payloads.items()
    ]  # fmt: skip


def _time_memcpy(source: np.ndarray, target: np.ndarray, count: int) -> float:
    dist.barrier()
    if dist.get_rank() == 0:
        return 0.0
    begin_s = time.perf_counter()
    for _ in range(count):
        np.copyto(target, source)
    return (time.perf_counter() - begin_s) / count


def _time_transfers(storage: RankStorage, exchange: Exchange, payload: Payload, count: int) -> float:
    transfers = [Transfer(i, 0, 0, 0, storage.bundle(0), payload) for i in range(count)]
    dist.barrier()
    begin_s = time.perf_counter()
    for ticket in [exchange.start(transfer) for transfer in transfers]:
        exchange.wait(ticket)
    return (time.perf_counter() - begin_s) / count


def _payload(
    plan: StagePlan, num_blocks: int, kind: PayloadKind, pattern: tuple[int, int], exchange: Exchange
) -> Payload:
    held, period = pattern
    runs: tuple[tuple[int, int], ...] = ((0, num_blocks),)
    if held < period:
        runs = tuple((at, min(at + held, num_blocks)) for at in range(0, num_blocks, period))
    planner = PayloadPlanner(kind, num_blocks, cost_bytes=exchange.cost_bytes)
    planner.open(StepHistory(runs, sum(stop - start for start, stop in runs), {}))
    return planner.payload(plan.bundles[0])


def _group() -> dist.ProcessGroup:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))
    assert isinstance(group, dist.ProcessGroup)
    return group


def _shm(rank: int, plan: StagePlan, num_blocks: int) -> tuple[RankStorage, Exchange]:
    group, layouts = _group(), [StorageLayout(plan, r, num_blocks, has_staging=False) for r in range(2)]
    arena = SharedFile(f"bench-{rank}", layouts[rank].size_bytes)
    peers = connect(rank, 2, arena, lambda values: gather_integers(group, values))
    storage = RankStorage(layouts[rank], arena.tensor())
    storage.arena.fill_(rank + 1)
    return storage, ShmExchange(rank, layouts, peers, TIMEOUT_S)


def _collective(rank: int, plan: StagePlan, num_blocks: int) -> tuple[RankStorage, Exchange]:
    layout = StorageLayout(plan, rank, num_blocks, has_staging=True)
    storage = RankStorage(layout, torch.full((layout.size_bytes,), rank + 1, dtype=torch.uint8))
    return storage, CollectiveExchange(_group(), storage.staging, TIMEOUT_S)


def report(measured: Sequence[Measured]) -> None:
    full_s = {(m.transport, m.bundle_bytes): m.transfer_s for m in measured if m.case == "full"}
    row = "{:<11}{:>8}  {:<13}{:>10}{:>9}{:>8}{:>10}{:>8}"
    print(row.format("transport", "bundle", "payload", "moved MiB", "ms", "GiB/s", "x memcpy", "x full"))
    for m in measured:
        cells = [
            f"{m.moved_bytes / MIB:.2f}",
            f"{m.transfer_s * 1e3:.3f}",
            f"{m.moved_bytes / m.transfer_s / (1 << 30):.2f}",
            f"{m.memcpy_s / m.transfer_s:.2f}",
            f"{m.transfer_s / full_s[m.transport, m.bundle_bytes]:.2f}",
        ]
        print(row.format(m.transport, f"{m.bundle_bytes // MIB} MiB", m.case, *cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 4, 16, 64])
    args = parser.parse_args()
    print(machine.describe())
    print("x memcpy: throughput of the transfer / throughput of a memcpy of as many bytes (higher is better)")
    print("x full: time of the transfer / time of the full payload (lower is better)")
    print(f"huge pages for shared memory: {machine.shared_huge_pages()}\n")
    measured: list[Measured] = []
    for megabytes in args.megabytes:
        measured += run_ranks(measure, 2, megabytes * MIB, args.rounds, timeout_s=300.0)[1]
    report(sorted(measured, key=lambda m: (m.transport, m.bundle_bytes)))


if __name__ == "__main__":
    main()
