"""Notices that a rank has stopped getting on inside a step, wherever it is stuck.

Most stalls end in a deadline of the exchange. But a rank can also wait for a dead or stalled peer in a
collective of the engine that has no deadline; then only somebody else in the process can say so.
"""

import threading
import time
from collections.abc import Callable, Hashable

_POLLS_PER_TIMEOUT = 20
_MAX_PERIOD_S = 1.0


class StallClock:
    """Pure part: adds up the time during which the progress marker did not change.

    A single interval counts for at most twice the polling period, so that a machine that was suspended as a
    whole is not mistaken for a stalled rank.
    """

    def __init__(self, timeout_s: float) -> None:
        self.period_s = min(_MAX_PERIOD_S, timeout_s / _POLLS_PER_TIMEOUT)
        self._timeout_s = timeout_s
        self._marker: Hashable = None
        self._stalled_s = 0.0

    def observe(self, marker: Hashable, *, busy: bool, elapsed_s: float) -> bool:
        """Take one look; True once the rank has been busy without progress for the timeout."""
        if not busy or marker != self._marker:
            self._marker = marker
            self._stalled_s = 0.0
            return False
        self._stalled_s += min(elapsed_s, 2 * self.period_s)
        return self._stalled_s >= self._timeout_s


class Watchdog:
    """Thread that looks at a rank through a StallClock and calls `on_stall` once, from that thread."""

    def __init__(
        self,
        timeout_s: float,
        look: Callable[[], tuple[Hashable, bool]],
        on_stall: Callable[[], None],
    ) -> None:
        self._clock = StallClock(timeout_s)
        self._look = look
        self._on_stall = on_stall
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvpp-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop looking. Idempotent."""
        self._stop.set()

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._stop.wait(self._clock.period_s):
            now_s = time.monotonic()
            marker, busy = self._look()
            if self._clock.observe(marker, busy=busy, elapsed_s=now_s - last_s):
                self._on_stall()
                return
            last_s = now_s
