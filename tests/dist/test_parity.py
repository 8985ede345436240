"""Sharded == replicated, bit for bit, on every rank, with the real runtime over real processes."""

import numpy as np
import pytest

from dist.sharded import FIRST_LAYER, Case, Result, run_cases
from dist.toy import NUM_BLOCKS, Step, ToyScheduler, run_replicated
from dist.transports import build_collective, build_shm
from kvply.config import PayloadKind
from kvply.testing.ranks import run_ranks

PAGES = ((256, 64), (256,), (1024, 64, 32), (256, 64), (512,))
STEPS = ToyScheduler(seed=5).steps(30)
BUILDS = (build_collective, build_shm)
RUN_TIMEOUT_S = 60.0


def check_parity(
    results: list[Result], stages: tuple[tuple[tuple[int, ...], ...], ...], steps: tuple[Step, ...]
) -> None:
    """Outputs of the last stage's ranks and every owned bundle equal the replicated model's."""
    pages = tuple(layer for stage in stages for layer in stage)
    outputs, caches = run_replicated(pages, steps, FIRST_LAYER)
    for result in results[-(len(results) // len(stages)) :]:
        assert all(
            np.array_equal(x, y)
            for a, b in zip(result.outputs, outputs, strict=True)
            for x, y in zip(a, b, strict=True)
        )
    owned = {layer: found for result in results for layer, found in result.owned.items()}
    assert sorted(owned) == list(range(FIRST_LAYER, FIRST_LAYER + len(pages)))
    for layer, found in owned.items():
        assert np.array_equal(found, caches[layer - FIRST_LAYER]), layer


def check_counters(results: list[Result], case: Case) -> None:
    """Bytes were moved, every rank counted the same ones, and `full` is what its formula says."""
    totals = [result.counters for result in results]
    group = len(results) // len(case.stages)
    for stage, pages in enumerate(case.stages):
        mine = totals[stage * group : (stage + 1) * group]
        assert len({(t.steps, t.broadcasts, t.bytes_sent, t.useful_bytes) for t in mine}) == 1
        assert mine[0].steps == len(case.steps)
        assert mine[0].broadcasts == len(pages) * mine[0].steps_with_history
        assert 0 < mine[0].useful_bytes <= mine[0].bytes_sent
        if case.payload is PayloadKind.FULL:
            per_step = sum(sum(layer) for layer in pages) * NUM_BLOCKS
            assert mine[0].bytes_sent == per_step * mine[0].steps_with_history


def test_the_schedule_has_what_it_is_meant_to_have() -> None:
    rows = [row for step in STEPS for row in step.rows]
    assert any(row.scheduled.replaces_blocks and row.scheduled.num_computed_tokens for row in rows)
    names = [row.scheduled.request_id for row in rows if row.scheduled.replaces_blocks]
    assert len(set(names)) < len(names)  # a preempted request came back
    assert any(step.finished for step in STEPS)
    assert any(len(row.tokens) == 1 and row.scheduled.num_computed_tokens > 8 for row in rows)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_sharded_equals_replicated(num_ranks: int) -> None:
    cases = [Case(build, kind, (PAGES,), STEPS) for build in BUILDS for kind in PayloadKind]
    by_rank = run_ranks(run_cases, num_ranks, cases, timeout_s=RUN_TIMEOUT_S)
    for case, results in zip(cases, zip(*by_rank, strict=True), strict=True):
        check_parity(list(results), case.stages, case.steps)
        check_counters(list(results), case)


def test_more_ranks_than_layers_and_two_stages_with_plans_of_their_own() -> None:
    few = [Case(build, PayloadKind.AUTO, (PAGES[:2],), STEPS) for build in BUILDS]
    staged = [Case(build, PayloadKind.ACTIVE, (PAGES[:3], PAGES[3:]), STEPS) for build in BUILDS]
    cases = few + staged
    by_rank = run_ranks(run_cases, 4, cases, timeout_s=RUN_TIMEOUT_S)
    for case, results in zip(cases, zip(*by_rank, strict=True), strict=True):
        check_parity(list(results), case.stages, case.steps)
        check_counters(list(results), case)


def test_parity_notices_one_wrong_bit_of_one_layers_history() -> None:
    step = next(i for i, s in enumerate(STEPS) if any(row.scheduled.num_computed_tokens > 8 for row in s.rows))
    cases = [Case(build, PayloadKind.ACTIVE, (PAGES,), STEPS, corrupt=(step, 4)) for build in BUILDS]
    by_rank = run_ranks(run_cases, 2, cases, timeout_s=RUN_TIMEOUT_S)
    for case, results in zip(cases, zip(*by_rank, strict=True), strict=True):
        with pytest.raises(AssertionError):
            check_parity(list(results), case.stages, case.steps)
