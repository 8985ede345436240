"""Shared-memory exchange: CPU ranks of one host read each other's arenas directly.

Each rank's arena lies in an anonymous shared file (memfd) that its peers map read-only. A broadcast is then
one copy per receiver, straight from the owner's bundle into the receiver's scratch slot; the owner copies
nothing and needs no staging. Who may touch what is said by two counters per rank in a small control file:

    ready[owner]    last transfer whose source the owner holds still for its peers
    done[rank]      last transfer the rank has finished copying

Counters are plain aligned 8-byte stores and rely on x86-64's total store order; other machines are refused.
"""

import contextlib
import mmap
import os
import platform
import select
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvply.errors import ExchangeTimeoutError, PeerLostError, UnsupportedError
from kvply.kvpp.exchange.base import Transfer
from kvply.kvpp.exchange.host import Deadline, HostExchange
from kvply.kvpp.storage import StorageLayout

Bytes = npt.NDArray[np.uint8]
Counters = npt.NDArray[np.int64]

# One counter per cache line, so that ranks do not fight over lines they only poll.
_COUNTER_STRIDE = 8
_POLL_MAX_S = 200e-6
_LIVENESS_PERIOD_S = 0.1


def refuse_reason() -> str | None:
    """Why this machine cannot run the shm transport, or None if it can."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return "shared memory between ranks needs Linux"
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"shared memory between ranks relies on x86-64's store order, this is {platform.machine()}"
    return None


class SharedFile:
    """An anonymous shared file of `size_bytes` zero bytes, mapped read-write by its creator."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        self.map = mmap.mmap(self.fd, size_bytes)
        _prefer_huge_pages(self.map)

    def tensor(self) -> torch.Tensor:
        """The whole file. Shape: [size_bytes], uint8; keeps the mapping alive."""
        return torch.frombuffer(self.map, dtype=torch.uint8)

    @property
    def address(self) -> "FileAddress":
        return FileAddress(os.getpid(), self.fd, self.size_bytes)


@dataclass(frozen=True, slots=True)
class FileAddress:
    """How a process of the same user, host and pid namespace finds a SharedFile."""

    pid: int
    fd: int
    size_bytes: int

    def open_map(self, *, writable: bool) -> mmap.mmap:
        """Map the peer's file. Raises UnsupportedError with the remedy if the system forbids it."""
        path = f"/proc/{self.pid}/fd/{self.fd}"
        try:
            fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        except OSError as error:
            raise UnsupportedError(
                f"cannot open a peer's cache at {path} ({error}); set kvpp_transport to 'collective'"
            ) from error
        try:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            found = mmap.mmap(fd, self.size_bytes, access=access)
        finally:
            os.close(fd)
        _prefer_huge_pages(found)
        return found


def _prefer_huge_pages(mapping: mmap.mmap) -> None:
    """Copies over 4 KiB pages are a fifth slower.

    Takes effect where /sys/kernel/mm/transparent_hugepage/shmem_enabled is `advise`, `within_size` or `always`.
    """
    with contextlib.suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)


@dataclass(frozen=True, slots=True)
class ShmPeers:
    """Everything one rank needs to see of its group: arenas by rank (own one included) and control counters.

    counters: shape [2 x group size x stride], int64; see `ready_index` and `done_index`.
    pids: process of each rank, watched while waiting.
    """

    arenas: tuple[Bytes, ...]
    counters: Counters
    pids: tuple[int, ...]


def control_size_bytes(group_size: int) -> int:
    return 2 * group_size * _COUNTER_STRIDE * 8


def connect(
    rank: int,
    group_size: int,
    arena: SharedFile,
    all_gather: Callable[[Sequence[int]], list[list[int]]],
) -> ShmPeers:
    """Exchange addresses and map every peer's arena; collective over the group.

    all_gather: gathers equally long lists of integers from all ranks, in rank order, within a deadline.
    """
    control = SharedFile("kvpp-control", control_size_bytes(group_size)) if rank == 0 else None
    mine = arena.address
    control_fd = control.fd if control is not None else -1
    rows = all_gather([mine.pid, mine.fd, mine.size_bytes, control_fd])
    addresses = [FileAddress(pid, fd, size) for pid, fd, size, _ in rows]
    maps = [
        arena.map if peer == rank else address.open_map(writable=False) for peer, address in enumerate(addresses)
    ]
    control_address = FileAddress(rows[0][0], rows[0][3], control_size_bytes(group_size))
    control_map = control.map if control is not None else control_address.open_map(writable=True)
    all_gather([0, 0, 0, 0])  # nobody may close a file before everybody has opened it
    return ShmPeers(
        arenas=tuple(np.frombuffer(m, dtype=np.uint8) for m in maps),
        counters=np.frombuffer(control_map, dtype=np.int64),
        pids=tuple(address.pid for address in addresses),
    )


def ready_index(rank: int) -> int:
    return 2 * rank * _COUNTER_STRIDE


def done_index(rank: int) -> int:
    return (2 * rank + 1) * _COUNTER_STRIDE


class ShmExchange(HostExchange):
    """layouts: storage layout of every rank of the group, to find a bundle in its owner's arena."""

    def __init__(self, rank: int, layouts: Sequence[StorageLayout], peers: ShmPeers, timeout_s: float) -> None:
        self._peers = peers
        self._offsets = [
            {ordinal: region.offset_bytes for ordinal, region in layout.owned.items()} for layout in layouts
        ]
        self._sequence = 0
        self._pidfds = {r: os.pidfd_open(pid) for r, pid in enumerate(peers.pids) if r != rank}
        super().__init__(rank, len(layouts), timeout_s)

    def close(self) -> None:
        super().close()
        while self._pidfds:
            os.close(self._pidfds.popitem()[1])

    def _carry(self, transfer: Transfer, deadline: Deadline) -> None:
        self._sequence += 1
        if self.rank == transfer.owner:
            self._peers.counters[ready_index(self.rank)] = self._sequence
            receivers = [r for r in range(self.group_size) if r != self.rank]
            self._wait_for({r: done_index(r) for r in receivers}, transfer, deadline)
        else:
            self._wait_for({transfer.owner: ready_index(transfer.owner)}, transfer, deadline)
            self._copy(transfer)
            self._peers.counters[done_index(self.rank)] = self._sequence

    def _copy(self, transfer: Transfer) -> None:
        source = self._peers.arenas[transfer.owner]
        offset = self._offsets[transfer.owner][transfer.ordinal]
        target = transfer.buffer.numpy()
        for start, stop in transfer.payload.ranges:
            np.copyto(target[start:stop], source[offset + start : offset + stop])

    def _wait_for(self, counters: dict[int, int], transfer: Transfer, deadline: Deadline) -> None:
        """Poll until every named rank's counter has reached this transfer."""
        pause_s, next_check_s = 0.0, time.monotonic() + _LIVENESS_PERIOD_S
        values = self._peers.counters
        while late := [r for r, index in counters.items() if values[index] < self._sequence]:
            if deadline.expired:
                place = self.describe(transfer)
                raise ExchangeTimeoutError(f"{place}: rank {late[0]} silent for {deadline.timeout_s:g} s")
            if time.monotonic() >= next_check_s:
                self._check_alive(late, transfer)
                next_check_s = time.monotonic() + _LIVENESS_PERIOD_S
            time.sleep(pause_s)
            pause_s = min(_POLL_MAX_S, pause_s + 1e-6)

    def _check_alive(self, ranks: Sequence[int], transfer: Transfer) -> None:
        for rank in ranks:
            readable, _, _ = select.select([self._pidfds[rank]], [], [], 0)
            if readable:
                raise PeerLostError(f"{self.describe(transfer)}: the process of rank {rank} is gone")
