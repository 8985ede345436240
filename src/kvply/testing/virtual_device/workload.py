"""A small scheduler that makes the steps which are hard on a cache that moves.

Fresh requests, prefix hits on running ones (also on blocks computed only in the same step), forks that copy a
half-filled block, pauses, aborts whose blocks are handed out again at once, and steps in which nobody has history.
"""

import random
from collections import Counter
from dataclasses import dataclass

from kvply.kvpp.history import ScheduledRequest
from kvply.testing.virtual_device.script import RequestWork, StepPlan

_MAX_RUNNING = 4


@dataclass(slots=True)
class _Running:
    blocks: list[int]
    num_computed_tokens: int
    num_told_blocks: int = 0
    """Blocks the workers have been told of."""


@dataclass(slots=True)
class _Draft:
    """The step under construction."""

    scheduled: list[ScheduledRequest]
    work: list[RequestWork]
    copies: list[tuple[int, int]]
    zeroed: list[int]


class RandomWorkload:
    """Deterministic in `seed`. Block ids are below `num_blocks`."""

    def __init__(self, seed: int, num_blocks: int, block_size_tokens: int) -> None:
        self._rng = random.Random(seed)
        self._size = block_size_tokens
        self._free = list(range(num_blocks))
        self._users: Counter[int] = Counter()
        self._requests: dict[str, _Running] = {}
        self._num_admitted = 0

    def steps(self, num_steps: int) -> tuple[StepPlan, ...]:
        return tuple(self._step() for _ in range(num_steps))

    def _step(self) -> StepPlan:
        rng, draft = self._rng, _Draft([], [], [], [])
        finished = tuple(self._finish(r) for r in list(self._requests) if rng.random() < 0.15)
        share = rng.choice((0.0, 0.8, 1.0))
        candidates = [r for r in self._requests if rng.random() < share]
        if not candidates or rng.random() < 0.5:
            candidates += self._admit(draft, can_fork=True)
        for request_id in candidates:
            self._schedule(request_id, draft)
        if rng.random() < 0.3:
            for request_id in self._admit(draft, can_fork=False):
                self._schedule(request_id, draft)
        return StepPlan(
            tuple(draft.scheduled), finished, tuple(draft.work), tuple(draft.copies), tuple(draft.zeroed)
        )

    def _admit(self, draft: _Draft, *, can_fork: bool) -> list[str]:
        """One more request, unless enough are running.

        It may hit blocks that others compute only in this step, if they were scheduled already; copies are made
        before the forward, so of such blocks there can be no fork.
        """
        if len(self._requests) >= _MAX_RUNNING:
            return []
        request_id = f"r{self._num_admitted}"
        self._num_admitted += 1
        parents = [p for p in self._requests.values() if p.num_computed_tokens]
        request = _Running([], 0)
        if parents and self._rng.random() < 0.6:
            request = self._child(self._rng.choice(parents), draft, can_fork=can_fork)
        self._requests[request_id] = request
        return [request_id]

    def _child(self, parent: _Running, draft: _Draft, *, can_fork: bool) -> _Running:
        """Shares the parent's full blocks; a fork also copies the half-filled one."""
        num_full, num_rest = divmod(parent.num_computed_tokens, self._size)
        child = _Running(parent.blocks[:num_full], num_full * self._size)
        self._users.update(child.blocks)
        if can_fork and num_rest and self._free:
            source, (target,) = parent.blocks[num_full], self._take(1)
            draft.copies.append((source, target))
            child.blocks.append(target)
            child.num_computed_tokens = parent.num_computed_tokens
        return child

    def _schedule(self, request_id: str, draft: _Draft) -> None:
        request = self._requests[request_id]
        stop = request.num_computed_tokens + self._rng.randint(1, 2 * self._size + 1)
        num_missing = max(0, -(-stop // self._size) - len(request.blocks))
        if num_missing > len(self._free):
            return
        fresh = self._take(num_missing)
        if self._rng.random() < 0.2:
            draft.zeroed += fresh
        request.blocks += fresh
        told = request.num_told_blocks
        draft.scheduled.append(
            ScheduledRequest(
                request_id, request.blocks[told:], request.num_computed_tokens, replaces_blocks=not told
            )
        )
        computed = request.num_computed_tokens
        draft.work.append(RequestWork(tuple(request.blocks), computed, stop - computed))
        request.num_told_blocks, request.num_computed_tokens = len(request.blocks), stop

    def _finish(self, request_id: str) -> str:
        blocks = self._requests.pop(request_id).blocks
        self._users.subtract(blocks)
        self._free += [block for block in blocks if not self._users[block]]
        return request_id

    def _take(self, num_blocks: int) -> list[int]:
        """Any free blocks, scattered rather than in order."""
        taken = self._rng.sample(self._free, num_blocks)
        self._free = [block for block in self._free if block not in taken]
        self._users.update(taken)
        return taken
