"""Scripted faults of an exchange: at a given rank, step and ordinal a process dies, stops or raises.

Every fault is written to a file before it strikes, so that a test can prove that it really happened.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvply.errors import ExchangeError
from kvply.kvpp.exchange.base import Exchange, Ticket, Transfer, WaitReport
from kvply.kvpp.payload import Ranges


class FaultKind(Enum):
    KILL = "kill"
    """The process kills itself (SIGKILL): nothing is cleaned up, the kernel closes its connections."""

    STALL = "stall"
    """The process stops itself (SIGSTOP): connections stay open and nobody answers. The test must kill it."""

    RAISE = "raise"
    """`start` raises InjectedFaultError; the process goes on, this rank's part of the transfer never comes."""


class InjectedFaultError(ExchangeError):
    """A fault of kind RAISE."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What strikes `rank` when it is about to start the transfer of `ordinal` in `step`."""

    rank: int
    step: int
    ordinal: int
    kind: FaultKind


class FaultScript:
    """Faults of all ranks, and the file that counts those that struck. Travels to the ranks by pickling."""

    def __init__(self, faults: Sequence[Fault], log: Path) -> None:
        self._faults = tuple(faults)
        self._log = log

    def struck(self) -> list[Fault]:
        """Faults that happened so far, on any rank, oldest first."""
        text = self._log.read_text(encoding="ascii") if self._log.exists() else ""
        return [self._faults[int(line)] for line in text.splitlines()]

    def strike(self, rank: int, transfer: Transfer) -> None:
        """Let the fault of this place happen, if there is one; may not return."""
        for index, fault in enumerate(self._faults):
            if (fault.rank, fault.step, fault.ordinal) == (rank, transfer.step, transfer.ordinal):
                self._record(index)
                _happen(fault)

    def _record(self, index: int) -> None:
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{index}\n".encode("ascii"))  # one write of a few bytes: whole, whoever else writes
        finally:
            os.close(fd)


class FaultyExchange(Exchange):
    """Passes everything on to `inner`, but for the faults that `script` has for `rank`."""

    def __init__(self, inner: Exchange, script: FaultScript, rank: int) -> None:
        self._inner = inner
        self._script = script
        self._rank = rank

    def start(self, transfer: Transfer) -> Ticket:
        self._script.strike(self._rank, transfer)
        return self._inner.start(transfer)

    def wait(self, ticket: Ticket) -> WaitReport:
        return self._inner.wait(ticket)

    def cost_bytes(self, ranges: Ranges) -> int:
        return self._inner.cost_bytes(ranges)

    def close(self) -> None:
        self._inner.close()


def _happen(fault: Fault) -> None:
    match fault.kind:
        case FaultKind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FaultKind.STALL:
            os.kill(os.getpid(), signal.SIGSTOP)
        case FaultKind.RAISE:
            raise InjectedFaultError(f"rank {fault.rank}, step {fault.step}, ordinal {fault.ordinal}: as scripted")
