"""Conformance suite for KVPP transports. Subclass `TransportTests`, say how to build one rank's end, done:

    class TestMyTransport(TransportTests):
        @staticmethod
        def build(group, plan, num_blocks, timeout_s):
            ...
            return RankEnd(storage, MyExchange(...))

`build` runs in the ranks' processes. Errors have to say `rank R`, `layer L` and `step S` about themselves, this
rank first, and to name the peer by number.
"""

import re
from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch.distributed as dist

from kvply.config import PayloadKind
from kvply.errors import ExchangeTimeoutError, PeerLostError
from kvply.kvpp.plan import StagePlan
from kvply.testing._transport_play import (
    FIRST_LAYER,
    Build,
    Loss,
    RankEnd,
    Scenario,
    play_all,
    play_until_lost,
)
from kvply.testing.faults import Fault, FaultKind, FaultScript
from kvply.testing.ranks import rank_outcomes, run_ranks

__all__ = ["Build", "RankEnd", "TransportTests"]

_EVEN = ((4096, 512),) * 7
_UNEVEN = ((4096,), (2048, 1024, 16), (16,), (8192, 512), (32, 32), (4096, 4096))
_GROWING = (((0, 1),), ((0, 9),), ((0, 9), (20, 21)), ((3, 30), (63, 64)), ((0, 64),))
_SPARSE = tuple((block, block + 1) for block in range(0, 1000, 16))
_MIXED = ((0, 6), (9, 10), (12, 13), (20, 40))

SCENARIOS = (
    Scenario("even-full", _EVEN, 64, PayloadKind.FULL, _GROWING),
    Scenario("even-active", _EVEN, 64, PayloadKind.ACTIVE, _GROWING),
    Scenario("uneven-full", _UNEVEN, 64, PayloadKind.FULL, _GROWING),
    Scenario("uneven-active", _UNEVEN, 64, PayloadKind.ACTIVE, _GROWING),
    Scenario("one-layer", ((1024, 16),), 64, PayloadKind.ACTIVE, _GROWING),
    Scenario("scattered", ((4096, 256),) * 3, 1000, PayloadKind.ACTIVE, (_SPARSE, _SPARSE[7:], _SPARSE[:2])),
    Scenario("long-and-short", ((65536, 16384),) * 4, 40, PayloadKind.ACTIVE, (_MIXED, _MIXED[1:])),
    Scenario("many-steps", ((256,), (512, 16)) * 2, 64, PayloadKind.AUTO, _GROWING * 8),
)

_RUN_TIMEOUT_S = 60.0
_WAIT_TIMEOUT_S = 20.0

# Three ranks with two layers each; the fault strikes before the second layer of rank 0, in the second step.
_LOSS = Scenario("loss", ((4096, 512),) * 6, 64, PayloadKind.ACTIVE, (((0, 64),), ((0, 64),)))
_LOSS_STEP, _LOSS_ORDINAL = 1, 1
_LOSS_TIMEOUT_S = 1.5
_SLACK_S = 1.5


class TransportTests:
    """Every scenario at every group size, and what survivors are told when a peer dies or stalls.

    group_sizes: leave out what the transport cannot serve.
    """

    group_sizes: tuple[int, ...] = (1, 2, 3, 4)

    @staticmethod
    @abstractmethod
    def build(group: dist.ProcessGroup, plan: StagePlan, num_blocks: int, timeout_s: float) -> RankEnd:
        """This rank's storage and exchange, for transfers that give up after `timeout_s`.

        Called at the same time on all ranks of `group`, which is a gloo group that nobody else uses.
        """

    @pytest.fixture(scope="class")
    @classmethod
    def complaints(cls) -> Callable[[int], dict[str, list[str]]]:
        """Complaints per scenario for a group size; one set of processes plays all scenarios."""

        @cache
        def play(num_ranks: int) -> dict[str, list[str]]:
            found = run_ranks(play_all, num_ranks, cls.build, SCENARIOS, _WAIT_TIMEOUT_S, timeout_s=_RUN_TIMEOUT_S)
            return {s.name: [line for lines in found for line in lines[s.name]] for s in SCENARIOS}

        return play

    @pytest.mark.parametrize("scenario", [s.name for s in SCENARIOS])
    @pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
    def test_history_arrives_and_nothing_else_changes(
        self, complaints: Callable[[int], dict[str, list[str]]], num_ranks: int, scenario: str
    ) -> None:
        if num_ranks not in self.group_sizes:
            pytest.skip(f"this transport does not serve groups of {num_ranks}")
        assert complaints(num_ranks)[scenario] == []

    @pytest.mark.parametrize("victim", [0, 1], ids=["owner", "receiver"])
    def test_a_killed_peer_is_named_within_the_deadline(self, victim: int, tmp_path: Path) -> None:
        for survivor, loss in self._losses(FaultKind.KILL, victim, tmp_path):
            assert issubclass(loss.kind, PeerLostError | ExchangeTimeoutError), loss
            _check_names(loss, survivor, victim)

    @pytest.mark.parametrize("victim", [0, 1], ids=["owner", "receiver"])
    def test_a_stalled_peer_is_named_within_the_deadline(self, victim: int, tmp_path: Path) -> None:
        for survivor, loss in self._losses(FaultKind.STALL, victim, tmp_path):
            assert issubclass(loss.kind, ExchangeTimeoutError), loss
            _check_names(loss, survivor, victim)

    def _losses(self, kind: FaultKind, victim: int, folder: Path) -> list[tuple[int, Loss]]:
        fault = Fault(victim, _LOSS_STEP, _LOSS_ORDINAL, kind)
        script = FaultScript([fault], folder / "faults")
        outcomes = rank_outcomes(
            play_until_lost, 3, self.build, _LOSS, _LOSS_TIMEOUT_S, script,
            timeout_s=_RUN_TIMEOUT_S, lost_ranks=[victim],
        )  # fmt: skip
        assert script.struck() == [fault]
        survivors = [outcome for outcome in outcomes if outcome.rank != victim]
        for outcome in survivors:
            assert outcome.failure is None, outcome.failure
            assert outcome.value is not None, f"rank {outcome.rank} did not notice"
        return [(outcome.rank, outcome.value) for outcome in survivors]


def _check_names(loss: Loss, survivor: int, victim: int) -> None:
    """The message says `rank`, `layer` and `step` with their numbers and names the victim, and came in time.

    A transport without acknowledgements lets an owner finish without its receivers; it has to notice at the
    victim's own next layer at the latest.
    """
    assert loss.waited_s <= _LOSS_TIMEOUT_S + _SLACK_S, loss
    own, layer, step = (re.search(rf"{word} (\d+)", loss.message) for word in ("rank", "layer", "step"))
    assert own is not None, loss
    assert layer is not None, loss
    assert step is not None, loss
    assert int(own[1]) == survivor, loss
    assert _LOSS_ORDINAL <= int(layer[1]) - FIRST_LAYER <= 2, loss
    assert int(step[1]) == _LOSS_STEP, loss
    rest = re.sub(r"(layer|step) \d+", "", loss.message.replace(own[0], "", 1))
    assert str(victim) in re.findall(r"\d+", rest), loss
