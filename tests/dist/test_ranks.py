"""The process helper itself: results in order, tracebacks, deadlines, and nobody left behind."""

import os
import signal
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from kvply.testing.ranks import RanksFailedError, rank_outcomes, run_ranks

TIMEOUT_S = 20.0


def sum_of_ranks(rank: int, extra: int) -> tuple[int, int]:
    total = torch.tensor([rank + extra])
    dist.all_reduce(total)
    return rank, int(total)


def fail_on(rank: int, failing_rank: int) -> int:
    if rank == failing_rank:
        raise LookupError(f"rank {rank} lost its way")
    return os.getpid()


def stop_or_die(rank: int, victim: int, signal_number: int) -> int:
    if rank == victim:
        os.kill(os.getpid(), signal_number)
    return os.getpid()


def sleep(rank: int, seconds: float) -> int:  # noqa: ARG001
    time.sleep(seconds)
    return os.getpid()


def children() -> list[psutil.Process]:
    """Processes that do a job, grandchildren included; not the servers that multiprocessing keeps."""
    return [child for server in psutil.Process().children() for child in server.children()]


def test_results_come_in_rank_order() -> None:
    assert run_ranks(sum_of_ranks, 2, 10, timeout_s=TIMEOUT_S) == [(0, 21), (1, 21)]


def test_a_traceback_reaches_the_caller() -> None:
    with pytest.raises(RanksFailedError, match=r"(?s)1 of 2 ranks.*fail_on.*LookupError: rank 1 lost its way"):
        run_ranks(fail_on, 2, 1, timeout_s=TIMEOUT_S)
    assert children() == []


def test_a_killed_rank_is_told_and_reaped() -> None:
    found = rank_outcomes(stop_or_die, 2, 1, signal.SIGKILL, timeout_s=TIMEOUT_S)
    assert found[0].failure is None
    assert (found[1].failure, found[1].exit_code) == ("the process died (exit code -9)", -9)
    assert not psutil.pid_exists(found[0].value)
    assert children() == []


def test_nobody_waits_for_a_stopped_rank_that_was_to_be_lost() -> None:
    found = rank_outcomes(stop_or_die, 2, 1, signal.SIGSTOP, timeout_s=TIMEOUT_S, lost_ranks=[1])
    assert found[0].failure is None
    assert (found[1].failure, found[1].exit_code) == ("no answer in time", None)
    assert children() == []


def test_a_deadline_ends_a_run_and_leaves_nobody() -> None:
    begin_s = time.monotonic()
    with pytest.raises(RanksFailedError, match="no answer in time"):
        run_ranks(sleep, 1, 60.0, timeout_s=0.5)
    assert time.monotonic() - begin_s < 10.0
    assert children() == []
