"""The child's half of `ranks`: take one job from a pipe and run it in a process group."""

import faulthandler
import importlib
import importlib.util
import os
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

# A job that hangs says where, shortly before its parent gives up on it.
_DUMP_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Job:
    """`function(rank, *args)`; ranks meet in the file `store_path`."""

    function: Callable[..., Any]
    args: tuple[object, ...]
    rank: int
    num_ranks: int
    store_path: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands for the result of a job that raised."""

    traceback: str


def module_files(*objects: object) -> dict[str, str]:
    """Module name -> source file of every function and class among `objects`.

    Some test runners import test modules under names that a fresh interpreter cannot find.
    """
    found: dict[str, str] = {}
    for item in objects:
        module = sys.modules.get(getattr(item, "__module__", None) or "")
        file = getattr(module, "__file__", None)
        if module is not None and file is not None and module.__name__ != "__main__":
            found[module.__name__] = file
    return found


def work(connection: "Connection[Any, Any]") -> None:
    """Do one job and wait to be killed. A job that raises is reported and ends the process."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    connection.send(None)
    try:
        modules = connection.recv()
        with _Reporter(connection):
            for name, file in modules.items():
                _ensure_module(name, file)
            connection.send(_run(connection.recv()))
        connection.recv()
    except EOFError:
        return


class _Reporter:
    """Sends the traceback of whatever leaves the block to the parent, and lets it go on."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._connection.send(Failure("".join(traceback.format_exception(error))))


def _run(job: Job) -> Any:
    faulthandler.dump_traceback_later(job.timeout_s * _DUMP_SHARE)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{job.store_path}",
            rank=job.rank,
            world_size=job.num_ranks,
            timeout=timedelta(seconds=job.timeout_s),
        )
        return job.function(job.rank, *job.args)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _ensure_module(name: str, file: str) -> None:
    if name in sys.modules:
        return
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        _add_parents(name, file)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def _add_parents(name: str, file: str) -> None:
    """Stand-ins for the packages above `name`: unpickling looks for them although it does not use them."""
    folder = os.path.dirname(file)
    while parent := name.rpartition(".")[0]:
        stand_in = types.ModuleType(parent)
        stand_in.__path__ = [folder]
        sys.modules.setdefault(parent, stand_in)
        name, folder = parent, os.path.dirname(folder)
