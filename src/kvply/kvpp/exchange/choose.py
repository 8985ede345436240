"""Which transport a group uses. Pure but for `host_identity`."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from kvply.config import TransportKind
from kvply.errors import UnsupportedError
from kvply.kvpp.exchange import shm


def choose_transport(wanted: TransportKind, device_type: str, hosts: Sequence[int]) -> TransportKind:
    """Resolve `wanted` for a group whose ranks live on `hosts` (identities in rank order).

    `auto` takes shared memory where it can work and the collective everywhere else. Raises UnsupportedError
    when shared memory was asked for by name and cannot work.
    """
    if wanted is TransportKind.COLLECTIVE:
        return wanted
    reason = _why_not_shm(device_type, hosts)
    if reason is None:
        return TransportKind.SHM
    if wanted is TransportKind.SHM:
        raise UnsupportedError(f"kvpp_transport=shm: {reason}; set kvpp_transport to 'collective' or 'auto'")
    return TransportKind.COLLECTIVE


def host_identity() -> int:
    """A number that two processes share if and only if they can find each other under /proc (63 bits).

    That takes the same boot of the same kernel and the same pid namespace.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    text = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def _why_not_shm(device_type: str, hosts: Sequence[int]) -> str | None:
    if device_type != "cpu":
        return f"the cache lives on {device_type}, not in host memory"
    if len(set(hosts)) > 1:
        return "the ranks of the group are on different hosts or in different pid namespaces"
    return shm.refuse_reason()
