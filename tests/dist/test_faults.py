"""Scripted faults under the real runtime: the survivor stops, says where, and can be closed."""

import re
from pathlib import Path

import pytest

from dist.sharded import FIRST_LAYER, Case, Result, run_with_faults
from dist.toy import ToyScheduler
from dist.transports import build_collective, build_shm
from kvply.config import PayloadKind
from kvply.errors import ExchangeTimeoutError, PeerLostError
from kvply.testing.faults import Fault, FaultKind, FaultScript, InjectedFaultError
from kvply.testing.ranks import RankOutcome, rank_outcomes
from kvply.testing.transport_suite import Build

PAGES = ((256, 64),) * 4
STEPS = ToyScheduler(seed=5).steps(12)
TIMEOUT_S = 1.0
RUN_TIMEOUT_S = 30.0

# Rank 1 owns ordinals 2 and 3; it fails before it offers the first of them.
STEP, ORDINAL = 6, 2


def run(build: Build, kind: FaultKind, folder: Path) -> list[RankOutcome]:
    fault = Fault(rank=1, step=STEP, ordinal=ORDINAL, kind=kind)
    script = FaultScript([fault], folder / "faults")
    case = Case(build, PayloadKind.AUTO, (PAGES,), STEPS, timeout_s=TIMEOUT_S)
    lost = [] if kind is FaultKind.RAISE else [1]
    outcomes = rank_outcomes(run_with_faults, 2, case, script, timeout_s=RUN_TIMEOUT_S, lost_ranks=lost)
    assert script.struck() == [fault]
    assert outcomes[0].failure is None, outcomes[0].failure
    return outcomes


def check_survivor(result: Result, *kinds: type[Exception]) -> None:
    assert result.error is not None
    kind, message = result.error
    assert issubclass(kind, kinds)
    assert re.search(rf"rank 0 with owner rank 1, layer {FIRST_LAYER + ORDINAL}, step {STEP}", message)
    assert result.position == f"layer {FIRST_LAYER + ORDINAL - 1}, step {STEP}"
    assert len(result.outputs) == STEP


@pytest.mark.parametrize("build", [build_collective, build_shm])
def test_a_killed_owner_ends_the_survivors_step(build: Build, tmp_path: Path) -> None:
    outcomes = run(build, FaultKind.KILL, tmp_path)
    check_survivor(outcomes[0].value, PeerLostError, ExchangeTimeoutError)
    assert outcomes[1].exit_code == -9


@pytest.mark.parametrize("build", [build_collective, build_shm])
def test_a_stalled_owner_runs_into_the_deadline(build: Build, tmp_path: Path) -> None:
    outcomes = run(build, FaultKind.STALL, tmp_path)
    check_survivor(outcomes[0].value, ExchangeTimeoutError)
    assert outcomes[1].failure == "no answer in time"


def test_a_rank_that_raises_leaves_its_peer_within_the_deadline(tmp_path: Path) -> None:
    outcomes = run(build_shm, FaultKind.RAISE, tmp_path)
    check_survivor(outcomes[0].value, ExchangeTimeoutError)
    kind, _ = outcomes[1].value.error
    assert kind is InjectedFaultError
