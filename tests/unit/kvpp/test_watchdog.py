"""The stall clock counts time without progress, and the watchdog acts on it once."""

import threading

from kvply.kvpp.watchdog import StallClock, Watchdog


def test_progress_resets_the_clock() -> None:
    clock = StallClock(timeout_s=20.0)
    looks = [(marker, clock.observe(marker, busy=True, elapsed_s=1.0)) for marker in (0, *range(30))]
    assert not any(stalled for _, stalled in looks)


def test_a_busy_rank_without_progress_is_stalled_after_the_timeout() -> None:
    clock = StallClock(timeout_s=20.0)
    looks = [clock.observe("same", busy=True, elapsed_s=1.0) for _ in range(21)]
    assert looks == [False] * 20 + [True]


def test_an_idle_rank_is_never_stalled() -> None:
    clock = StallClock(timeout_s=20.0)
    assert not any(clock.observe("same", busy=False, elapsed_s=1.0) for _ in range(100))


def test_a_suspended_machine_is_not_a_stalled_rank() -> None:
    clock = StallClock(timeout_s=20.0)
    clock.observe("same", busy=True, elapsed_s=1.0)
    assert not clock.observe("same", busy=True, elapsed_s=3600.0)


def test_the_watchdog_acts_once_from_its_thread() -> None:
    calls: list[str] = []
    acted = threading.Event()

    def on_stall() -> None:
        calls.append(threading.current_thread().name)
        acted.set()

    watchdog = Watchdog(0.2, lambda: ("stuck", True), on_stall)
    watchdog.start()
    assert acted.wait(10)
    watchdog.close()
    assert calls == ["kvpp-watchdog"]
