"""Exchanges of CPU ranks: a transfer thread stands in for the transfer stream of a device."""

import os
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable

from kvply.errors import ExchangeError, ExchangeTimeoutError
from kvply.kvpp.exchange.base import Exchange, Ticket, Transfer, WaitReport

# The transfer itself gives up at the deadline; the waiting thread gives it this much longer to say why.
_GRACE_S = 5.0


class Deadline:
    """A point in time that every wait of one transfer shares."""

    __slots__ = ("_end_s", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._end_s - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._end_s


class HostTicket(Ticket):
    """Filled by the transfer thread, read by the compute thread after `done`."""

    __slots__ = ("done", "error", "transfer_s")

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(transfer)
        self.done = threading.Event()
        self.error: ExchangeError | None = None
        self.transfer_s = 0.0


class HostExchange(Exchange):
    """Runs `_carry` of one transfer after the other on a thread of its own.

    CPU compute is synchronous, so whatever was computed before `start` is in memory when `_carry` runs.
    """

    def __init__(self, rank: int, group_size: int, timeout_s: float) -> None:
        self.rank = rank
        self.group_size = group_size
        self.timeout_s = timeout_s
        self._jobs: queue.SimpleQueue[HostTicket | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"kvpp-transfer-{rank}", daemon=True)
        self._thread.start()

    @abstractmethod
    def _carry(self, transfer: Transfer, deadline: Deadline) -> None:
        """Move the bytes; return when this rank's buffer is free for use. Runs on the transfer thread.

        Raises ExchangeError (use `describe` for the place).
        """

    def start(self, transfer: Transfer) -> Ticket:
        ticket = HostTicket(transfer)
        self._jobs.put(ticket)
        return ticket

    def wait(self, ticket: Ticket) -> WaitReport:
        assert isinstance(ticket, HostTicket)
        begin_s = time.perf_counter()
        if not ticket.done.wait(self.timeout_s + _GRACE_S):
            raise ExchangeTimeoutError(
                f"{self.describe(ticket.transfer)}: the transfer thread did not finish within "
                f"{self.timeout_s + _GRACE_S:g} s"
            )
        if ticket.error is not None:
            raise ticket.error
        return WaitReport(time.perf_counter() - begin_s, ticket.transfer_s)

    def close(self) -> None:
        self._jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(_GRACE_S)

    def _run(self) -> None:
        _leave_compute_cores()
        while (ticket := self._jobs.get()) is not None:
            begin_s = time.perf_counter()
            try:
                self._carry(ticket.transfer, Deadline(self.timeout_s))
            except ExchangeError as error:
                ticket.error = error
            ticket.transfer_s = time.perf_counter() - begin_s
            ticket.done.set()


def _leave_compute_cores() -> None:
    """Let the calling thread run on any core the process may use.

    vLLM pins each compute thread of a CPU rank to one core; a thread started from there inherits the pin and
    would wait for the very compute it is meant to hide behind.
    """
    set_affinity: Callable[[int, set[int]], None] | None = getattr(os, "sched_setaffinity", None)
    if set_affinity is not None:
        set_affinity(0, set(range(os.cpu_count() or 1)))
