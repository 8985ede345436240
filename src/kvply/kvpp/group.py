"""What ranks of one group tell each other at start: integers and fingerprints, never objects.

Everything here is collective over a group with a CPU backend (gloo) and belongs to start-up, not to the hot
path. Messages are tensors of a fixed size; nothing is unpickled.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from kvply.errors import AgreementError, ExchangeError, ExchangeTimeoutError, PeerLostError

START_TIMEOUT_S = 120.0

# To torch a timeout of less than a millisecond is no timeout at all.
_MIN_WAIT_S = 2e-3


def gather_integers(
    group: dist.ProcessGroup, values: Sequence[int], *, timeout_s: float = START_TIMEOUT_S
) -> list[list[int]]:
    """Every rank's `values`, in group rank order, on every rank. Values are signed 64-bit integers.

    Blocks until all ranks have called it, at most `timeout_s` for each of two collectives (lengths, values).
    Raises AgreementError on every rank if lists differ in length, ExchangeTimeoutError if a rank does not
    come, PeerLostError if one is gone.
    """
    lengths = [row[0] for row in _gather_rows(group, [len(values)], timeout_s)]
    if len(set(lengths)) != 1:
        raise AgreementError(f"ranks of one group gave lists of different lengths, in rank order: {lengths}")
    return _gather_rows(group, values, timeout_s) if values else [[] for _ in lengths]


def check_agreement(group: dist.ProcessGroup, fingerprint: bytes, *, timeout_s: float = START_TIMEOUT_S) -> None:
    """Return once every rank has shown the same fingerprint (bytes of any length).

    Raises AgreementError on every rank, naming the ranks that differ from the group's first, and otherwise
    what `gather_integers` raises.
    """
    digest = hashlib.sha256(fingerprint).digest()
    words = [int.from_bytes(digest[at : at + 8], "little", signed=True) for at in range(0, len(digest), 8)]
    rows = gather_integers(group, words, timeout_s=timeout_s)
    differing = [rank for rank, row in enumerate(rows) if row != rows[0]]
    if differing:
        raise AgreementError(
            f"ranks {differing} of a group of {len(rows)} derived another plan than rank 0 (seen on rank "
            f"{dist.get_rank(group)}, fingerprint {digest.hex()[:16]}); check that every rank runs the same "
            f"model, versions and settings"
        )


def _gather_rows(group: dist.ProcessGroup, values: Sequence[int], timeout_s: float) -> list[list[int]]:
    mine = torch.tensor(list(values), dtype=torch.int64)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    try:
        work = dist.all_gather(rows, mine, group=group, async_op=True)
        work.wait(timedelta(seconds=max(timeout_s, _MIN_WAIT_S)))
    except RuntimeError as error:  # all that torch.distributed raises when a peer is late or gone
        raise _explain(error, group, timeout_s) from error
    return [row.tolist() for row in rows]


def _explain(error: RuntimeError, group: dist.ProcessGroup, timeout_s: float) -> ExchangeError:
    ranks = dist.get_process_group_ranks(group)
    place = f"global rank {dist.get_rank()} at start, with ranks {ranks}"
    if "timed out" in str(error).lower():
        return ExchangeTimeoutError(f"{place}: a rank did not come within {timeout_s:g} s ({error})")
    return PeerLostError(f"{place}: the connection failed ({error})")
