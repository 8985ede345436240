"""The conformance suite has to catch transports that are wrong in the ways transports go wrong."""

import time

import numpy as np
import pytest
import torch.distributed as dist

from dist.transports import build_shm
from kvply.kvpp.exchange.base import Transfer
from kvply.kvpp.exchange.host import Deadline
from kvply.kvpp.exchange.shm import ShmExchange, ready_index
from kvply.kvpp.plan import StagePlan
from kvply.testing._transport_play import play_all
from kvply.testing.ranks import run_ranks
from kvply.testing.transport_suite import SCENARIOS, Build, RankEnd

CHECKED = [s for s in SCENARIOS if s.name in ("even-full", "even-active", "scattered")]


class MovesNothing(ShmExchange):
    def _copy(self, transfer: Transfer) -> None:
        del transfer


class MovesTooMuch(ShmExchange):
    """Ignores what was asked for and copies the whole bundle."""

    def _copy(self, transfer: Transfer) -> None:
        offset, target = self._offsets[transfer.owner][transfer.ordinal], transfer.buffer.numpy()
        np.copyto(target, self._peers.arenas[transfer.owner][offset : offset + target.size])


class ForgetsTheLastRange(ShmExchange):
    def _copy(self, transfer: Transfer) -> None:
        super()._copy(transfer)
        start, stop = transfer.payload.ranges[-1]
        transfer.buffer[start:stop].bitwise_not_()


class OwnerDoesNotWait(ShmExchange):
    """Lets the owner compute while slow receivers are still copying."""

    def _carry(self, transfer: Transfer, deadline: Deadline) -> None:
        if self.rank != transfer.owner:
            super()._carry(transfer, deadline)
            return
        self._sequence += 1
        self._peers.counters[ready_index(self.rank)] = self._sequence

    def _copy(self, transfer: Transfer) -> None:
        time.sleep(2e-3)
        super()._copy(transfer)


def broken(kind: type[ShmExchange]) -> Build:
    def build(group: dist.ProcessGroup, plan: StagePlan, num_blocks: int, timeout_s: float) -> RankEnd:
        end = build_shm(group, plan, num_blocks, timeout_s)
        end.exchange.__class__ = kind
        return end

    return build


def play_broken(rank: int, kind: type[ShmExchange]) -> dict[str, list[str]]:
    return play_all(rank, broken(kind), CHECKED, 10.0)


@pytest.mark.parametrize(
    ("kind", "caught_by"),
    [
        (MovesNothing, {"even-full", "even-active", "scattered"}),
        (MovesTooMuch, {"even-active", "scattered"}),
        (ForgetsTheLastRange, {"even-full", "even-active", "scattered"}),
        (OwnerDoesNotWait, {"even-full", "even-active", "scattered"}),
    ],
)
def test_the_suite_catches(kind: type[ShmExchange], caught_by: set[str]) -> None:
    by_rank = run_ranks(play_broken, 2, kind, timeout_s=30.0)
    assert {name for complaints in by_rank for name, lines in complaints.items() if lines} == caught_by
