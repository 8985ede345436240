"""Run a function on several real processes with a gloo group between them, and bring back what happened.

Processes are forked from a clean, freshly spawned server that has imported torch and done nothing else, so
they inherit no thread and no state of the test process and still start in milliseconds. Ranks meet through a
file in a temporary directory, never through a fixed port; every wait has a deadline; and every process is
reaped, also after a failure. What travels between the test process and its children is pickled, so this is
for one's own tests only. Changes to `os.environ` after the first call do not reach the children.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_any
from typing import Any, TypeVar

from kvply.errors import KvplyError
from kvply.testing._rank_worker import Failure, Job, module_files, work

T = TypeVar("T")

# The first call on a busy machine imports torch; that is not part of a job's own deadline.
_START_TIMEOUT_S = 60.0
_REAP_TIMEOUT_S = 10.0

# Imported once in the server: what every child would import anyway. Modules that are missing are passed over.
_PRELOADED = ["torch.distributed", "pytest", "kvply.testing._rank_worker"]

_DIED = "the process died"
_SILENT = "no answer in time"


class RanksFailedError(KvplyError, RuntimeError):
    """At least one rank did not return a result; the message has the traceback or the fate of each."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """What became of one rank.

    value: what the function returned, if it did.
    failure: the traceback if it raised, or its fate in words if it died or did not answer; else None.
    exit_code: of a process that died by itself, negative for a signal as in `subprocess`; else None.
    """

    rank: int
    value: Any
    failure: str | None = None
    exit_code: int | None = None


def run_ranks(function: Callable[..., T], num_ranks: int, *args: object, timeout_s: float) -> list[T]:
    """`function(rank, *args)` on `num_ranks` processes; its results in rank order.

    The function must be at module level (or a static method). In it, torch.distributed's default group is a
    gloo group of all ranks. Raises RanksFailedError unless every rank returned within `timeout_s`.
    """
    outcomes = rank_outcomes(function, num_ranks, *args, timeout_s=timeout_s)
    failures = [f"rank {o.rank}: {o.failure}" for o in outcomes if o.failure is not None]
    if failures:
        raise RanksFailedError("\n".join([f"{len(failures)} of {num_ranks} ranks failed", *failures]))
    return [outcome.value for outcome in outcomes]


def rank_outcomes(
    function: Callable[..., Any],
    num_ranks: int,
    *args: object,
    timeout_s: float,
    lost_ranks: Collection[int] = (),
) -> list[RankOutcome]:
    """Like `run_ranks`, but tells what became of each rank instead of raising.

    lost_ranks: ranks that the test kills or stops; nobody waits for them once the others have answered. No
    process ends before that, so ranks see each other's faults and not each other's exits.
    """
    children = [_Child() for _ in range(num_ranks)]
    try:
        _await_ready(children)
        end_s = time.monotonic() + timeout_s
        with tempfile.TemporaryDirectory(prefix="kvply-ranks-") as folder:
            for rank, child in enumerate(children):
                job = Job(function, args, rank, num_ranks, f"{folder}/store", timeout_s)
                child.connection.send(module_files(function, *args))
                child.connection.send(job)
            _collect(children, end_s, lost_ranks)
    finally:
        exit_codes = [child.reap() for child in children]
    return [
        _outcome(rank, child.answer, exit_code)
        for rank, (child, exit_code) in enumerate(zip(children, exit_codes, strict=True))
    ]


class _Child:
    """One process, the parent's end of its pipe, and what came through it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self.answer: Any = Failure(_SILENT)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self) -> None:
        try:
            self.answer = self.connection.recv()
        except (EOFError, ConnectionError):
            self.answer = Failure(_DIED)
            self.process.join(_REAP_TIMEOUT_S)

    def reap(self) -> int | None:
        """Kill the process, stopped ones included, and collect it. Returns its exit code if it died before."""
        exit_code = self.process.exitcode
        self.process.kill()
        self.process.join(_REAP_TIMEOUT_S)
        self.process.close()
        self.connection.close()
        return exit_code


def _await_ready(children: Sequence[_Child]) -> None:
    end_s = time.monotonic() + _START_TIMEOUT_S
    for rank, child in enumerate(children):
        if not child.connection.poll(max(0.0, end_s - time.monotonic())):
            raise RanksFailedError(f"rank {rank} did not start within {_START_TIMEOUT_S:g} s")
        child.receive()


def _collect(children: Sequence[_Child], end_s: float, lost_ranks: Collection[int]) -> None:
    """Take the answer of every rank that is not to be lost, at most until `end_s`, and any other there is."""
    pending: dict[object, int] = {child.connection: rank for rank, child in enumerate(children)}
    for child in children:
        child.answer = Failure(_SILENT)
    while set(pending.values()) - set(lost_ranks) and (left_s := end_s - time.monotonic()) > 0:
        for connection in wait_any(_connections(children, pending.values()), left_s):
            children[pending.pop(connection)].receive()
    for rank in pending.values():
        if children[rank].connection.poll(0):
            children[rank].receive()


def _connections(children: Sequence[_Child], ranks: Collection[int]) -> "list[Connection[Any, Any]]":
    return [children[rank].connection for rank in ranks]


def _outcome(rank: int, answer: Any, exit_code: int | None) -> RankOutcome:
    if not isinstance(answer, Failure):
        return RankOutcome(rank, answer)
    if answer.traceback == _DIED:
        return RankOutcome(rank, None, f"{_DIED} (exit code {exit_code})", exit_code)
    return RankOutcome(rank, None, answer.traceback)
