import pytest

from kvply.kvpp.history import HistoryTracker, HistoryWay, ScheduledRequest, StepHistory

BLOCK_SIZE_TOKENS = 4


def scheduled(
    request_id: str, new_block_ids: list[int], num_computed_tokens: int, *, replaces_blocks: bool = False
) -> ScheduledRequest:
    return ScheduledRequest(request_id, new_block_ids, num_computed_tokens, replaces_blocks)


def tracker_after(*requests: ScheduledRequest) -> HistoryTracker:
    tracker = HistoryTracker(100, BLOCK_SIZE_TOKENS)
    tracker.advance(requests, ())
    return tracker


def advance(tracker: HistoryTracker, *requests: ScheduledRequest, finished: tuple[str, ...] = ()) -> StepHistory:
    history = tracker.advance(requests, finished)
    tracker.check_integrity()
    return history


def test_new_prompt_has_no_history() -> None:
    history = advance(HistoryTracker(100, BLOCK_SIZE_TOKENS), scheduled("a", [3, 4], 0))
    assert history == StepHistory((), 0, {"a": HistoryWay.NOTHING})
    assert not history.needs_broadcast


@pytest.mark.parametrize(
    ("num_computed_tokens", "runs"),
    [(1, ((3, 4),)), (3, ((3, 4),)), (4, ((3, 4),)), (5, ((3, 5),)), (8, ((3, 5),)), (9, ((3, 5), (9, 10)))],
)
def test_history_reaches_into_the_block_being_filled(
    num_computed_tokens: int, runs: tuple[tuple[int, int], ...]
) -> None:
    history = advance(tracker_after(scheduled("a", [3, 4], 0)), scheduled("a", [9], num_computed_tokens))
    assert history.runs == runs
    assert history.ways == {"a": HistoryWay.CACHE_TO_QUERIES}
    assert history.needs_broadcast


def test_prefix_hit_is_history_in_the_first_step() -> None:
    history = advance(HistoryTracker(100, BLOCK_SIZE_TOKENS), scheduled("a", [7, 8, 9], 8))
    assert history.runs == ((7, 9),)


def test_one_request_with_history_makes_the_step_need_it() -> None:
    tracker = tracker_after(scheduled("a", [3], 0))
    history = advance(tracker, scheduled("a", [], 4), scheduled("b", [5, 6], 0))
    assert history.runs == ((3, 4),)
    assert history.ways == {"a": HistoryWay.CACHE_TO_QUERIES, "b": HistoryWay.NOTHING}


def test_shared_prefix_blocks_count_once() -> None:
    history = advance(
        HistoryTracker(100, BLOCK_SIZE_TOKENS), scheduled("a", [3, 4, 5], 8), scheduled("b", [3, 4, 6], 8)
    )
    assert history.runs == ((3, 5),)
    assert history.num_history_blocks == 2


def test_shared_prefix_stays_when_one_of_its_users_finishes() -> None:
    tracker = tracker_after(scheduled("a", [3, 4], 4), scheduled("b", [3, 5], 4))
    assert advance(tracker, scheduled("b", [], 5), finished=("a",)).runs == ((3, 4), (5, 6))


def test_request_that_is_not_scheduled_adds_nothing_until_it_is_again() -> None:
    tracker = tracker_after(scheduled("a", [3], 0), scheduled("b", [5], 0))
    assert advance(tracker, scheduled("b", [], 4)).runs == ((5, 6),)
    assert advance(tracker, scheduled("a", [4], 4)).runs == ((3, 4),)


def test_step_without_tokens_has_no_history() -> None:
    tracker = tracker_after(scheduled("a", [3], 4))
    assert advance(tracker) == StepHistory((), 0, {})


def test_resumed_request_forgets_the_blocks_it_was_preempted_from() -> None:
    tracker = tracker_after(scheduled("a", [3, 4], 8))
    advance(tracker)
    history = advance(tracker, scheduled("a", [8, 9], 4, replaces_blocks=True))
    assert history.runs == ((8, 9),)
    assert advance(tracker, scheduled("a", [], 8)).runs == ((8, 10),)


def test_resumed_request_without_prefix_hit_has_no_history() -> None:
    tracker = tracker_after(scheduled("a", [3, 4], 8))
    history = advance(tracker, scheduled("a", [8, 9], 0, replaces_blocks=True))
    assert history.ways == {"a": HistoryWay.NOTHING}
    assert not history.needs_broadcast


def test_block_freed_by_one_request_can_be_history_of_another() -> None:
    tracker = tracker_after(scheduled("a", [3, 4], 8))
    assert advance(tracker, scheduled("b", [4, 6], 5), finished=("a",)).runs == ((4, 5), (6, 7))


def test_id_of_a_finished_request_can_come_back_in_the_same_step() -> None:
    tracker = tracker_after(scheduled("a", [3, 4], 8))
    assert advance(tracker, scheduled("a", [7], 4), finished=("a",)).runs == ((7, 8),)


def test_aborting_a_request_that_was_never_scheduled_is_harmless() -> None:
    assert advance(HistoryTracker(100, BLOCK_SIZE_TOKENS), finished=("ghost",)) == StepHistory((), 0, {})


def test_rejected_speculative_tokens_shorten_the_history() -> None:
    tracker = tracker_after(scheduled("a", [3, 4], 8))
    assert advance(tracker, scheduled("a", [], 4)).runs == ((3, 4),)


def test_integrity_check_finds_a_request_that_lost_its_blocks() -> None:
    tracker = tracker_after(scheduled("a", [3, 4], 8))
    tracker._requests["a"].num_counted = 1
    with pytest.raises(ValueError, match="1 history blocks in requests, 2 held"):
        tracker.check_integrity()


def test_integrity_check_finds_a_request_that_is_no_longer_followed() -> None:
    tracker = tracker_after(scheduled("a", [3, 4], 8))
    tracker._counted_ids.clear()
    with pytest.raises(ValueError, match="tracked"):
        tracker.check_integrity()
