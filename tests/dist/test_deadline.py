"""Deadlines at their edges."""

import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from dist.transports import build_collective, build_shm
from kvply.errors import ExchangeTimeoutError
from kvply.kvpp.exchange.base import Transfer
from kvply.kvpp.exchange.host import Deadline, HostExchange
from kvply.kvpp.payload import Payload
from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle, Component
from kvply.testing.ranks import rank_outcomes
from kvply.testing.transport_suite import Build

GROUP_TIMEOUT_S = 10.0


def carry_after_the_deadline(rank: int, build: Build) -> float:
    """A transfer whose deadline passed while its earlier messages travelled, and a peer that stays away."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=GROUP_TIMEOUT_S))
    plan = StagePlan.build(2, [Bundle.of(i, [Component(f"layers.{i}.kv", 4096)]) for i in range(2)])
    end = build(group, plan, 64, GROUP_TIMEOUT_S)
    assert isinstance(end.exchange, HostExchange)
    dist.barrier()
    if rank == 0:
        time.sleep(GROUP_TIMEOUT_S)
        return 0.0
    begin_s = time.monotonic()
    payload = Payload(((0, 64 * 4096),), 64 * 4096, 64 * 4096)
    with pytest.raises(ExchangeTimeoutError):
        end.exchange._carry(Transfer(0, 0, 0, 0, end.storage.bundle(0), payload), Deadline(0.0))
    return time.monotonic() - begin_s


@pytest.mark.parametrize("build", [build_collective, build_shm])
def test_an_expired_deadline_does_not_mean_no_deadline(build: Build) -> None:
    outcome = rank_outcomes(carry_after_the_deadline, 2, build, timeout_s=30.0, lost_ranks=[0])[1]
    assert outcome.failure is None, outcome.failure
    assert outcome.value < 2.0
