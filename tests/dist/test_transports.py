"""The shipped conformance suite, on the transports of CPU ranks."""

import torch.distributed as dist

from dist.transports import build_collective, build_shm
from kvply.kvpp.payload import total_bytes
from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle, Component
from kvply.testing.ranks import run_ranks
from kvply.testing.transport_suite import Build, TransportTests


class TestCollective(TransportTests):
    build = staticmethod(build_collective)


class TestShm(TransportTests):
    build = staticmethod(build_shm)


PAGE_BYTES = 4096
NUM_BLOCKS = 1024
FULL = ((0, NUM_BLOCKS * PAGE_BYTES),)
SPARSE = tuple((i * PAGE_BYTES, (i + 1) * PAGE_BYTES) for i in range(0, NUM_BLOCKS, 100))
SCATTERED = tuple((i * PAGE_BYTES, (i + 1) * PAGE_BYTES) for i in range(0, NUM_BLOCKS, 10))


def costs(rank: int, build: Build) -> list[int]:  # noqa: ARG001
    bundles = [Bundle.of(i, [Component(f"layers.{i}.kv", PAGE_BYTES)]) for i in range(2)]
    group = dist.new_group([0, 1])
    exchange = build(group, StagePlan.build(2, bundles), NUM_BLOCKS, 10.0).exchange
    found = [exchange.cost_bytes(ranges) for ranges in (FULL, SPARSE, SCATTERED)]
    exchange.close()
    dist.barrier()
    return found


def test_a_collective_weighs_its_messages_and_shared_memory_its_bytes() -> None:
    first, second = run_ranks(costs, 2, build_collective, timeout_s=30.0)
    assert first == second
    full, sparse, scattered = first
    assert sparse < full < scattered
    assert (
        run_ranks(costs, 2, build_shm, timeout_s=30.0) == [[total_bytes(r) for r in (FULL, SPARSE, SCATTERED)]] * 2
    )
