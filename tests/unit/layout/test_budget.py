import pytest

from kvply.layout.budget import RankBudget, staging_blocks

MIB = 1 << 20


def budget(*, has_staging: bool, largest: int = 100) -> RankBudget:
    return RankBudget(
        owned_bytes_per_block=300,
        local_bytes_per_block=50,
        largest_bytes_per_block=largest,
        logical_bytes_per_block=1050,
        has_staging=has_staging,
    )


@pytest.mark.parametrize(
    ("num_blocks", "largest_bytes_per_block", "expected"),
    [
        (0, 1024, 0),
        (1, 1024, 1),
        (64, 1024, 1),
        (65, 1024, 2),
        (6400, 1024, 100),
        (10_000_000, MIB, 16),
        (10_000_000, 16 * MIB, 1),
        (10_000_000, 17 * MIB, 1),
    ],
)
def test_staging_is_a_64th_of_the_blocks_up_to_16_mib(
    num_blocks: int, largest_bytes_per_block: int, expected: int
) -> None:
    assert staging_blocks(num_blocks, largest_bytes_per_block) == expected


def test_a_block_costs_owned_local_and_two_scratch_slots() -> None:
    assert budget(has_staging=False).physical_bytes_per_block == 300 + 50 + 2 * 100


@pytest.mark.parametrize(("num_blocks", "staging"), [(0, 0), (1, 100), (64, 100), (65, 200)])
def test_staging_comes_on_top(num_blocks: int, staging: int) -> None:
    assert budget(has_staging=False).physical_bytes(num_blocks) == num_blocks * 550
    assert budget(has_staging=True).physical_bytes(num_blocks) == num_blocks * 550 + staging


@pytest.mark.parametrize(
    ("available_bytes", "without_staging", "with_staging"),
    [(-1, 0, 0), (0, 0, 0), (549, 0, 0), (550, 1, 0), (649, 1, 0), (650, 1, 1), (35_200, 64, 63)],
)
def test_blocks_that_fit_at_the_edges(available_bytes: int, without_staging: int, with_staging: int) -> None:
    assert budget(has_staging=False).blocks_that_fit(available_bytes) == without_staging
    assert budget(has_staging=True).blocks_that_fit(available_bytes) == with_staging


def test_planner_is_told_logical_bytes() -> None:
    assert budget(has_staging=True).logical_bytes(3) == 3150
