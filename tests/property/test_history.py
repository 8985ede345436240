"""HistoryTracker against what a small scheduler knows about its own requests."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvply.kvpp.history import HistoryTracker, HistoryWay, ScheduledRequest
from support.plans import runs_of

NUM_BLOCKS = 900
NAMES = tuple("abcdefgh")

# Lengths around block multiples: (blocks, tokens more or less). 280 blocks make a bulk change.
LENGTHS = st.tuples(st.sampled_from((0, 1, 1, 2, 3, 280)), st.integers(-1, 1))
PICKS = st.integers(0, 1000)


@dataclass
class Request:
    """blocks hold its tokens; `num_computed` of them were computed before the upcoming step."""

    blocks: list[int]
    num_computed: int
    num_scheduled: int = 0
    is_preempted: bool = False


class SchedulerMachine(RuleBasedStateMachine):
    """Rules put together the upcoming step; `advance` hands it to the tracker."""

    @initialize(block_size_tokens=st.sampled_from((1, 4, 16)))
    def start(self, block_size_tokens: int) -> None:
        self.block_size_tokens = block_size_tokens
        self.tracker = HistoryTracker(NUM_BLOCKS, block_size_tokens)
        self.requests: dict[str, Request] = {}
        self.users: Counter[int] = Counter()
        self.free = list(range(NUM_BLOCKS))
        self.output: list[ScheduledRequest] = []
        self.finished: list[str] = []

    def idle(self, *, preempted: bool) -> list[str]:
        """Requests the upcoming step does not hold yet."""
        requests = self.requests.items()
        return [name for name, r in requests if not r.num_scheduled and r.is_preempted is preempted]

    def num_tokens(self, length: tuple[int, int]) -> int:
        return max(1, length[0] * self.block_size_tokens + length[1])

    def num_blocks(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size_tokens - 1) // self.block_size_tokens

    def prefix_of(self, pick: int, num_full_blocks: int) -> list[int]:
        """Leading full blocks of some request, also of one that is computed only in the upcoming step."""
        donors = [r for r in self.requests.values() if r.blocks]
        if not donors:
            return []
        donor = donors[pick % len(donors)]
        num_full = (donor.num_computed + donor.num_scheduled) // self.block_size_tokens
        return donor.blocks[: min(num_full, num_full_blocks)]

    def schedule(self, name: str, num_tokens: int, *, replaces_blocks: bool, shared: list[int]) -> None:
        """Give the request what it needs for `num_tokens` more; does nothing when blocks run out."""
        request = self.requests[name]
        num_needed = self.num_blocks(request.num_computed + num_tokens) - len(request.blocks) - len(shared)
        if num_needed > len(self.free):
            return
        new = shared + [self.free.pop() for _ in range(num_needed)]
        self.users.update(new)
        request.blocks += new
        request.num_scheduled = num_tokens
        request.is_preempted = False
        self.output.append(ScheduledRequest(name, tuple(new), request.num_computed, replaces_blocks))

    def release(self, request: Request) -> None:
        for block in request.blocks:
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)
        request.blocks = []

    @precondition(lambda self: len(self.requests) < len(NAMES))
    @rule(pick=PICKS, hit=st.integers(0, 3), recomputes_last=st.booleans(), length=LENGTHS, replaces=st.booleans())
    def admit(self, pick: int, hit: int, recomputes_last: bool, length: tuple[int, int], replaces: bool) -> None:
        name = next(name for name in NAMES if name not in self.requests)
        self.requests[name] = Request([], 0, is_preempted=True)
        self.resume_with(name, pick, hit, recomputes_last, length, replaces=replaces)
        if self.requests[name].is_preempted:
            del self.requests[name]

    @precondition(lambda self: self.idle(preempted=True))
    @rule(which=PICKS, pick=PICKS, hit=st.integers(0, 300), recomputes_last=st.booleans(), length=LENGTHS)
    def resume(self, which: int, pick: int, hit: int, recomputes_last: bool, length: tuple[int, int]) -> None:
        names = self.idle(preempted=True)
        self.resume_with(names[which % len(names)], pick, hit, recomputes_last, length, replaces=True)

    def resume_with(
        self,
        name: str,
        pick: int,
        hit: int,
        recomputes_last: bool,
        length: tuple[int, int],
        *,
        replaces: bool,
    ) -> None:
        shared = self.prefix_of(pick, hit)
        hit_tokens = len(shared) * self.block_size_tokens
        self.requests[name].num_computed = max(0, hit_tokens - recomputes_last)
        self.schedule(name, self.num_tokens(length) + 1, replaces_blocks=replaces, shared=shared)

    @precondition(lambda self: self.idle(preempted=False))
    @rule(which=PICKS, length=LENGTHS)
    def grow(self, which: int, length: tuple[int, int]) -> None:
        names = self.idle(preempted=False)
        self.schedule(names[which % len(names)], self.num_tokens(length), replaces_blocks=False, shared=[])

    @precondition(lambda self: self.idle(preempted=False))
    @rule(which=PICKS)
    def preempt(self, which: int) -> None:
        names = self.idle(preempted=False)
        request = self.requests[names[which % len(names)]]
        self.release(request)
        request.num_computed, request.is_preempted = 0, True

    @precondition(lambda self: self.idle(preempted=False) or self.idle(preempted=True))
    @rule(which=PICKS)
    def finish_or_abort(self, which: int) -> None:
        names = self.idle(preempted=False) + self.idle(preempted=True)
        name = names[which % len(names)]
        self.release(self.requests.pop(name))
        self.finished.append(name)

    @rule()
    def abort_before_it_was_ever_scheduled(self) -> None:
        self.finished.append("never scheduled")

    @rule(num_rejected=st.integers(0, 3))
    def advance(self, num_rejected: int) -> None:
        history = self.tracker.advance(self.output, self.finished)
        expected, ways = set(), {}
        for scheduled in self.output:
            request = self.requests[scheduled.request_id]
            blocks = {request.blocks[t // self.block_size_tokens] for t in range(request.num_computed)}
            ways[scheduled.request_id] = HistoryWay.CACHE_TO_QUERIES if blocks else HistoryWay.NOTHING
            expected |= blocks
        assert history.runs == runs_of(expected)
        assert history.num_history_blocks == len(expected)
        assert history.ways == ways
        assert history.needs_broadcast == bool(expected)
        self.compute(num_rejected)

    def compute(self, num_rejected: int) -> None:
        """Run the step: all scheduled tokens count, but for rejected speculative ones."""
        for request in self.requests.values():
            if request.num_scheduled:
                request.num_computed += max(1, request.num_scheduled - num_rejected)
                request.num_scheduled = 0
        self.output, self.finished = [], []

    @invariant()
    def tracker_is_consistent(self) -> None:
        self.tracker.check_integrity()


TestHistoryTracker = SchedulerMachine.TestCase
