import pytest

from kvply.config import PayloadKind
from kvply.errors import PeerLostError, StepOrderError
from kvply.kvpp.exchange.base import Exchange, Ticket, Transfer, WaitReport
from kvply.kvpp.history import StepHistory
from kvply.kvpp.payload import PayloadPlanner
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.runtime import KvppRuntime
from kvply.kvpp.storage import RankStorage
from kvply.observe.metrics import RankCounters, StepCounters
from support.plans import make_history, make_plan, make_storage

NUM_BLOCKS = 4
PAGE_BYTES = 1 << 16
HISTORY, NO_HISTORY = make_history((1, 2)), make_history()


class RecordingExchange(Exchange):
    """Moves nothing, remembers every call, and reports the times it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.transfers: list[Transfer] = []
        self.report = WaitReport(exposed_s=0.25, transfer_s=1.0)
        self.failure: PeerLostError | None = None
        self.is_closed = False

    def start(self, transfer: Transfer) -> Ticket:
        self.calls.append(("start", transfer.ordinal))
        self.transfers.append(transfer)
        return Ticket(transfer)

    def wait(self, ticket: Ticket) -> WaitReport:
        self.calls.append(("wait", ticket.transfer.ordinal))
        if self.failure is not None:
            raise self.failure
        return self.report

    def close(self) -> None:
        self.is_closed = True


class Rig:
    """A runtime with its surroundings, on one rank of a small plan."""

    def __init__(self, num_layers: int = 3, group_size: int = 2, rank: int = 0) -> None:
        self.plan: StagePlan = make_plan(group_size, [[PAGE_BYTES]] * num_layers, first_layer=38)
        self.storage: RankStorage = make_storage(self.plan, rank, NUM_BLOCKS)
        self.exchange = RecordingExchange()
        self.counters = RankCounters()
        payloads = PayloadPlanner(PayloadKind.ACTIVE, NUM_BLOCKS)
        self.runtime = KvppRuntime(self.plan, self.storage, self.exchange, payloads, self.counters)

    def run_step(self, *, with_history: bool = True, calls_per_layer: int = 1) -> None:
        self.runtime.begin_step(HISTORY if with_history else NO_HISTORY)
        for ordinal in range(self.plan.num_layers):
            for _ in range(calls_per_layer):
                self.runtime.before_layer(ordinal)
        self.runtime.end_step()


IN_ORDER = [("start", 0), ("wait", 0), ("start", 1), ("wait", 1), ("start", 2), ("wait", 2)]


def test_each_layer_is_waited_for_and_the_next_one_started() -> None:
    rig = Rig()
    rig.runtime.begin_step(HISTORY)
    assert rig.exchange.calls == IN_ORDER[:1]
    rig.runtime.before_layer(0)
    assert rig.exchange.calls == IN_ORDER[:3]
    rig.runtime.before_layer(1)
    assert rig.exchange.calls == IN_ORDER[:5]
    rig.runtime.before_layer(2)
    rig.runtime.end_step()
    assert rig.exchange.calls == IN_ORDER


def test_stage_of_one_layer_starts_nothing_beyond_it() -> None:
    rig = Rig(num_layers=1)
    rig.run_step()
    assert rig.exchange.calls == [("start", 0), ("wait", 0)]


def test_further_calls_for_a_layer_do_nothing() -> None:
    rig = Rig()
    rig.run_step(calls_per_layer=3)
    assert rig.exchange.calls == IN_ORDER


def test_step_without_history_moves_nothing() -> None:
    rig = Rig()
    rig.run_step(with_history=False)
    assert rig.exchange.calls == []


def test_forward_outside_a_step_moves_nothing() -> None:
    rig = Rig()
    rig.runtime.before_layer(2)
    rig.run_step()
    rig.runtime.before_layer(1)
    assert rig.exchange.calls == IN_ORDER


def test_first_layer_starts_late_when_the_cache_is_written_before_the_forward() -> None:
    rig = Rig()
    rig.runtime.begin_step(HISTORY, cache_written_before_forward=True)
    assert rig.exchange.calls == []
    rig.runtime.before_layer(0)
    assert rig.exchange.calls == IN_ORDER[:3]


def test_cache_written_before_a_forward_without_history_moves_nothing() -> None:
    rig = Rig()
    rig.runtime.begin_step(NO_HISTORY, cache_written_before_forward=True)
    rig.runtime.before_layer(0)
    assert rig.exchange.calls == []


def test_transfer_says_what_moves_where() -> None:
    rig = Rig(rank=1)
    rig.run_step(with_history=False)
    rig.run_step()
    assert [(t.step, t.ordinal, t.layer, t.owner) for t in rig.exchange.transfers] == [
        (1, 0, 38, 0),
        (1, 1, 39, 0),
        (1, 2, 40, 1),
    ]
    for transfer in rig.exchange.transfers:
        assert transfer.buffer.data_ptr() == rig.storage.bundle(transfer.ordinal).data_ptr()
        assert transfer.buffer.numel() == NUM_BLOCKS * PAGE_BYTES
        assert transfer.payload.ranges == ((PAGE_BYTES, 2 * PAGE_BYTES),)


def test_slots_alternate_on_a_rank_that_owns_nothing() -> None:
    rig = Rig(num_layers=4, group_size=5, rank=4)
    rig.run_step()
    addresses = [transfer.buffer.data_ptr() for transfer in rig.exchange.transfers]
    assert addresses[0] == addresses[2] != addresses[1] == addresses[3]


@pytest.mark.parametrize("history", [HISTORY, NO_HISTORY], ids=["history", "no history"])
class TestOrder:
    def test_skipped_layer_is_an_error(self, history: StepHistory) -> None:
        runtime = Rig().runtime
        runtime.begin_step(history)
        runtime.before_layer(0)
        with pytest.raises(StepOrderError, match=r"layer 40 .* step 0, .* ordinal 1"):
            runtime.before_layer(2)

    def test_layer_that_comes_back_is_an_error(self, history: StepHistory) -> None:
        runtime = Rig().runtime
        runtime.begin_step(history)
        runtime.before_layer(0)
        runtime.before_layer(1)
        with pytest.raises(StepOrderError, match="layer 38"):
            runtime.before_layer(0)

    def test_layer_missing_at_the_end_is_an_error(self, history: StepHistory) -> None:
        runtime = Rig().runtime
        runtime.begin_step(history)
        runtime.before_layer(0)
        runtime.before_layer(1)
        with pytest.raises(StepOrderError, match="step 0 ended before layer 40"):
            runtime.end_step()

    def test_step_opened_twice_is_an_error(self, history: StepHistory) -> None:
        runtime = Rig().runtime
        runtime.begin_step(history)
        with pytest.raises(StepOrderError, match="step 0 is still open"):
            runtime.begin_step(history)


def test_closing_a_step_that_is_not_open_is_an_error() -> None:
    with pytest.raises(StepOrderError, match="no step is open"):
        Rig().runtime.end_step()


def test_failed_wait_reaches_the_caller_and_starts_no_further_layer() -> None:
    rig = Rig()
    rig.exchange.failure = PeerLostError("rank 1 left")
    rig.runtime.begin_step(HISTORY)
    with pytest.raises(PeerLostError):
        rig.runtime.before_layer(0)
    assert rig.exchange.calls == IN_ORDER[:2]


def test_counters_of_a_step_with_history() -> None:
    rig = Rig()
    rig.run_step()
    assert rig.counters.last_step == StepCounters(
        steps=1,
        steps_with_history=1,
        broadcasts=3,
        bytes_sent=3 * PAGE_BYTES,
        useful_bytes=3 * PAGE_BYTES,
        exposed_wait_s=0.75,
        hidden_s=2.25,
    )


def test_transfer_that_was_waited_for_throughout_hides_nothing() -> None:
    rig = Rig()
    rig.exchange.report = WaitReport(exposed_s=1.5, transfer_s=1.0)
    rig.run_step()
    assert (rig.counters.last_step.exposed_wait_s, rig.counters.last_step.hidden_s) == (4.5, 0.0)


def test_counters_of_a_step_without_history_are_zero_but_for_the_step() -> None:
    rig = Rig()
    rig.run_step(with_history=False)
    assert rig.counters.last_step == StepCounters(steps=1)


def test_total_adds_up_closed_steps_only() -> None:
    rig = Rig()
    rig.run_step()
    rig.run_step(with_history=False)
    rig.run_step()
    rig.runtime.begin_step(HISTORY)
    rig.runtime.before_layer(0)
    assert rig.counters.total.steps == 3
    assert rig.counters.total.steps_with_history == 2
    assert rig.counters.total.broadcasts == 6


def test_position_and_progress_follow_the_rank() -> None:
    rig = Rig(num_layers=2)
    seen = []

    def look() -> None:
        seen.append((rig.runtime.is_open, rig.runtime.position, rig.runtime.progress))

    look()
    rig.runtime.begin_step(HISTORY)
    look()
    rig.runtime.before_layer(0)
    look()
    rig.runtime.before_layer(1)
    look()
    rig.runtime.end_step()
    look()
    assert seen == [
        (False, "before the first step", (0, -1)),
        (True, "layer 38, step 0", (1, 0)),
        (True, "layer 38, step 0", (1, 1)),
        (True, "layer 39, step 0", (1, 2)),
        (False, "after step 0", (1, -1)),
    ]


def test_closing_gives_up_the_open_step_and_the_exchange() -> None:
    rig = Rig()
    rig.runtime.begin_step(HISTORY)
    rig.runtime.close()
    assert rig.exchange.is_closed
    assert not rig.runtime.is_open
    assert rig.counters.total.steps == 0
