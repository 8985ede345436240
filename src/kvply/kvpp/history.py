"""Which blocks hold history in a step, decided from scheduler output alone.

Every rank sees the same scheduler output, so every rank derives the same history; nothing here may look at
rank-local data.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvply.kvpp.blocks import BlockRuns


class HistoryWay(Enum):
    """How a request's history reaches the computation in a step."""

    NOTHING = "nothing"
    """The request has no history: its first tokens are computed now."""

    CACHE_TO_QUERIES = "cache_to_queries"
    """Owners broadcast the cache to where the queries are."""


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request as the scheduler presents it in a step.

    new_block_ids: appended to the request's blocks, or all of them if `replaces_blocks`.
    num_computed_tokens: tokens of it computed in earlier steps, before this one.
    """

    request_id: str
    new_block_ids: Sequence[int]
    num_computed_tokens: int
    replaces_blocks: bool


@dataclass(frozen=True, slots=True)
class StepHistory:
    """What a step has to have in place before its layers run.

    runs: sorted half-open intervals of block ids whose contents layers may read, from requests that need
        their cache moved.
    num_history_blocks: number of ids in `runs`.
    ways: way of every scheduled request.
    """

    runs: tuple[tuple[int, int], ...]
    num_history_blocks: int
    ways: Mapping[str, HistoryWay]

    @property
    def needs_broadcast(self) -> bool:
        return self.num_history_blocks > 0


@dataclass(slots=True)
class _Request:
    """`blocks[:num_counted]` are counted as history in the step under way."""

    blocks: list[int] = field(default_factory=list)
    num_counted: int = 0


class HistoryTracker:
    """Follows requests through steps; each `advance` costs what changed, not what is allocated.

    A request can be admitted on a prefix hit against blocks that another request of the same step computes
    only now. Such blocks count as history although nothing needs to be in them yet: one block too many is
    harmless, one too few is a wrong token.
    """

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._requests: dict[str, _Request] = {}
        self._counted_ids: set[str] = set()
        self._blocks = BlockRuns(num_blocks)

    def advance(self, scheduled: Sequence[ScheduledRequest], finished_ids: Collection[str]) -> StepHistory:
        """Take in one step's scheduler output and return the history of that step.

        Must be called once per scheduler output, in order, on every rank, also for steps without tokens.
        """
        for request_id in finished_ids:
            self._forget(request_id)
        scheduled_ids = {request.request_id for request in scheduled}
        for request_id in self._counted_ids - scheduled_ids:
            self._count(self._requests[request_id], 0)
            self._counted_ids.discard(request_id)
        ways = {request.request_id: self._take(request) for request in scheduled}
        return StepHistory(self._blocks.runs, self._blocks.num_held, ways)

    def check_integrity(self) -> None:
        """Raises ValueError if counted blocks and requests disagree."""
        self._blocks.check_integrity()
        counted = {r for r, request in self._requests.items() if request.num_counted}
        if counted != self._counted_ids:
            raise ValueError(f"requests counted {counted} but tracked {self._counted_ids}")
        union = {b for r in self._requests.values() for b in r.blocks[: r.num_counted]}
        if len(union) != self._blocks.num_held:
            raise ValueError(f"{len(union)} history blocks in requests, {self._blocks.num_held} held")

    def _take(self, scheduled: ScheduledRequest) -> HistoryWay:
        request = self._requests.setdefault(scheduled.request_id, _Request())
        if scheduled.replaces_blocks:
            self._count(request, 0)
            request.blocks = list(scheduled.new_block_ids)
        else:
            request.blocks.extend(scheduled.new_block_ids)
        num_history = -(-scheduled.num_computed_tokens // self._block_size_tokens)
        self._count(request, min(num_history, len(request.blocks)))
        if not request.num_counted:
            self._counted_ids.discard(scheduled.request_id)
            return HistoryWay.NOTHING
        self._counted_ids.add(scheduled.request_id)
        return HistoryWay.CACHE_TO_QUERIES

    def _count(self, request: _Request, num_history: int) -> None:
        if num_history > request.num_counted:
            self._blocks.add(request.blocks[request.num_counted : num_history])
        elif num_history < request.num_counted:
            self._blocks.remove(request.blocks[num_history : request.num_counted])
        request.num_counted = num_history

    def _forget(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._count(request, 0)
            self._counted_ids.discard(request_id)
