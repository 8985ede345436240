from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvply.layout.placement import contiguous_owners

LAYERS, RANKS = st.integers(0, 200), st.integers(1, 64)


def counts(num_layers: int, num_ranks: int) -> list[int]:
    owners = contiguous_owners(num_layers, num_ranks)
    return [owners.count(rank) for rank in range(num_ranks)]


@given(LAYERS, RANKS)
def test_each_layer_has_exactly_one_owner_in_the_group(num_layers: int, num_ranks: int) -> None:
    owners = contiguous_owners(num_layers, num_ranks)
    assert len(owners) == num_layers
    assert set(owners) <= set(range(num_ranks))


@given(LAYERS, RANKS)
def test_layers_of_a_rank_are_contiguous_and_ranks_in_order(num_layers: int, num_ranks: int) -> None:
    assert all(after - before in (0, 1) for before, after in pairwise(contiguous_owners(num_layers, num_ranks)))


@given(LAYERS, RANKS)
def test_sizes_differ_by_at_most_one_with_the_remainder_first(num_layers: int, num_ranks: int) -> None:
    sizes = counts(num_layers, num_ranks)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(0, 63), RANKS)
def test_with_more_ranks_than_layers_the_last_ranks_own_nothing(num_layers: int, more: int) -> None:
    assert counts(num_layers, num_layers + more) == [1] * num_layers + [0] * more
