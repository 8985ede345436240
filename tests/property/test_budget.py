from hypothesis import given
from hypothesis import strategies as st

from kvply.layout.budget import RankBudget, staging_blocks

LARGEST = st.integers(1, 40 << 20)
BUDGETS = st.builds(
    RankBudget,
    owned_bytes_per_block=st.integers(0, 1 << 28),
    local_bytes_per_block=st.integers(0, 1 << 24),
    largest_bytes_per_block=LARGEST,
    logical_bytes_per_block=st.integers(1, 1 << 30),
    has_staging=st.booleans(),
)
AVAILABLE = st.one_of(st.integers(-100, 1 << 22), st.integers(0, 1 << 40))


def allocated_bytes(budget: RankBudget, num_blocks: int) -> int:
    """Sum over what KVPP allocates, one after the other."""
    largest = budget.largest_bytes_per_block
    owned, local = num_blocks * budget.owned_bytes_per_block, num_blocks * budget.local_bytes_per_block
    scratch = [num_blocks * largest, num_blocks * largest]
    wanted = num_blocks // 64 + (num_blocks % 64 > 0)
    staging = min(wanted, max(1, (16 << 20) // largest)) * largest if budget.has_staging else 0
    return owned + local + sum(scratch) + staging


@given(BUDGETS, st.integers(0, 1 << 20))
def test_physical_bytes_are_all_that_is_allocated(budget: RankBudget, num_blocks: int) -> None:
    assert budget.physical_bytes(num_blocks) == allocated_bytes(budget, num_blocks)


@given(BUDGETS, AVAILABLE)
def test_blocks_that_fit_is_the_largest_number_that_fits(budget: RankBudget, available_bytes: int) -> None:
    num_blocks = budget.blocks_that_fit(available_bytes)
    assert num_blocks >= 0
    assert num_blocks == 0 or allocated_bytes(budget, num_blocks) <= available_bytes
    assert allocated_bytes(budget, num_blocks + 1) > available_bytes


@given(BUDGETS, st.integers(1, 1 << 20))
def test_bytes_of_n_blocks_fit_n_blocks(budget: RankBudget, num_blocks: int) -> None:
    assert budget.blocks_that_fit(allocated_bytes(budget, num_blocks)) == num_blocks
    assert budget.blocks_that_fit(allocated_bytes(budget, num_blocks) - 1) == num_blocks - 1


@given(st.integers(1, 1 << 24), LARGEST)
def test_staging_holds_a_block_and_stays_within_its_bounds(num_blocks: int, largest: int) -> None:
    staged = staging_blocks(num_blocks, largest)
    assert 1 <= staged <= num_blocks
    assert staged == 1 or staged * largest <= 16 << 20
    assert 64 * (staged - 1) < num_blocks
