"""What ranks tell each other at start."""

import os
import signal
import time
from datetime import timedelta

import torch.distributed as dist

from kvply.errors import AgreementError, ExchangeTimeoutError, KvplyError, PeerLostError
from kvply.kvpp.group import check_agreement, gather_integers
from kvply.testing.ranks import rank_outcomes, run_ranks

TIMEOUT_S = 20.0
BIG = 2**63 - 1


def gather_all(rank: int) -> list[list[list[int]]]:
    pair = dist.new_group([1, 2], timeout=timedelta(seconds=TIMEOUT_S))
    found = [gather_integers(dist.group.WORLD, [rank, -rank, BIG, -BIG - 1]), gather_integers(dist.group.WORLD, [])]
    if rank:
        found.append(gather_integers(pair, [10 * rank]))
    return found


def agree(rank: int, odd_rank: int, lengths_differ: bool) -> str | None:
    fingerprint = b"same" if rank != odd_rank else b"other and longer"
    try:
        if lengths_differ:
            gather_integers(dist.group.WORLD, [0] * (2 if rank == odd_rank else 1), timeout_s=TIMEOUT_S)
        else:
            check_agreement(dist.group.WORLD, fingerprint, timeout_s=TIMEOUT_S)
    except AgreementError as error:
        return str(error)
    return None


def lose_peer(rank: int, signal_number: int, timeout_s: float) -> tuple[type[KvplyError], str, float]:
    gather_integers(dist.group.WORLD, [rank])
    if rank == 1:
        os.kill(os.getpid(), signal_number)
    begin_s = time.monotonic()
    try:
        gather_integers(dist.group.WORLD, [rank], timeout_s=timeout_s)
    except KvplyError as error:
        return type(error), str(error), time.monotonic() - begin_s
    raise AssertionError("the peer cannot have answered")


def test_every_rank_gets_all_lists_in_group_rank_order() -> None:
    world = [[rank, -rank, BIG, -BIG - 1] for rank in range(3)]
    empty: list[list[int]] = [[], [], []]
    assert run_ranks(gather_all, 3, timeout_s=TIMEOUT_S) == [
        [world, empty],
        [world, empty, [[10], [20]]],
        [world, empty, [[10], [20]]],
    ]


def test_equal_fingerprints_agree() -> None:
    assert run_ranks(agree, 2, -1, False, timeout_s=TIMEOUT_S) == [None, None]


def test_all_ranks_are_told_who_differs() -> None:
    for message in run_ranks(agree, 3, 2, False, timeout_s=TIMEOUT_S):
        assert message is not None
        assert message.startswith("ranks [2] of a group of 3 derived another plan than rank 0")


def test_lists_of_different_lengths_are_refused_on_every_rank() -> None:
    for message in run_ranks(agree, 2, 1, True, timeout_s=TIMEOUT_S):
        assert message is not None
        assert message.endswith("in rank order: [1, 2]")


def test_a_stalled_rank_is_a_timeout() -> None:
    outcome = rank_outcomes(lose_peer, 2, signal.SIGSTOP, 0.5, timeout_s=TIMEOUT_S, lost_ranks=[1])[0]
    kind, message, waited_s = outcome.value
    assert kind is ExchangeTimeoutError
    assert "rank 0 at start, with ranks [0, 1]" in message
    assert waited_s < 3.0


def test_a_killed_rank_is_a_lost_peer() -> None:
    outcome = rank_outcomes(lose_peer, 2, signal.SIGKILL, 10.0, timeout_s=TIMEOUT_S, lost_ranks=[1])[0]
    kind, message, _ = outcome.value
    assert kind is PeerLostError
    assert "rank 0 at start" in message
