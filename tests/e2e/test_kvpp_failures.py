"""A rank dies or stalls under load: the client gets an HTTP error, the server ends, nothing is left behind."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from kvply.testing import recall
from support.server import Server, post

TIMEOUT_S = 4
# What vLLM takes to notice, report and shut down, beyond KVPP's own deadline.
SLACK_S = 60

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    kvpp = json.dumps({"enable_kvpp": True, "kvpp_timeout_s": TIMEOUT_S})
    arguments = [
        *("--tensor-parallel-size", "2", "--enforce-eager", "--max-model-len", "4096"),
        *("--kv-cache-memory-bytes", str(64 << 20), "--max-num-seqs", "4"),
        *("--additional-config", kvpp),
    ]
    server = Server(str(recall.MODEL_DIR), arguments, tmp_path / "server.log", num_ranks=2)
    try:
        server.wait_until_ready(150)
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stalled"])
def test_a_lost_rank_ends_in_an_http_error(server: Server, fault: signal.Signals) -> None:
    status, body = complete(server, max_tokens=4)
    assert status == 200, body
    victim, processes = server.worker(1), server.descendants()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(complete, server, max_tokens=3900)
        time.sleep(2)
        assert not pending.done(), "the request ended before the fault"
        victim.send_signal(fault)
        wait_for_fault(victim, fault)
        status, body = pending.result(TIMEOUT_S + SLACK_S)
    assert status >= 500, body
    _, alive = psutil.wait_procs(processes, SLACK_S)
    assert not alive, f"left behind: {alive}"
    server.process.wait(SLACK_S)
    if fault is signal.SIGSTOP:
        assert "KVPP rank 0" in server.log
        assert "layer" in server.log
        assert "step" in server.log


def complete(server: Server, max_tokens: int) -> tuple[int, object]:
    body = {
        "model": str(recall.MODEL_DIR),
        "prompt": "A cache remembers what was computed before. " * 3,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return post(server.port, "/v1/completions", json.dumps(body).encode(), timeout_s=TIMEOUT_S + SLACK_S)


def wait_for_fault(victim: psutil.Process, fault: signal.Signals) -> None:
    """Return once the process has died or stopped, as it should; a fault that does not happen proves nothing."""
    expected = {psutil.STATUS_STOPPED} if fault is signal.SIGSTOP else {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    end_s = time.monotonic() + 5
    while time.monotonic() < end_s:
        if fault is signal.SIGKILL and not victim.is_running():
            return
        with suppress(psutil.NoSuchProcess):
            if victim.status() in expected:
                return
        time.sleep(0.01)
    raise AssertionError(f"{fault.name} did not take effect")
