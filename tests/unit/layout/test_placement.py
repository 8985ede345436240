import pytest

from kvply.layout.placement import contiguous_owners


@pytest.mark.parametrize(
    ("num_layers", "num_ranks", "owned"),
    [
        (27, 4, [7, 7, 7, 6]),
        (61, 8, [8, 8, 8, 8, 8, 7, 7, 7]),
        (78, 8, [10, 10, 10, 10, 10, 10, 9, 9]),
        (4, 1, [4]),
        (4, 4, [1, 1, 1, 1]),
        (2, 4, [1, 1, 0, 0]),
        (0, 2, [0, 0]),
    ],
)
def test_remainder_goes_to_the_first_ranks(num_layers: int, num_ranks: int, owned: list[int]) -> None:
    assert contiguous_owners(num_layers, num_ranks) == tuple(
        rank for rank, count in enumerate(owned) for _ in range(count)
    )


@pytest.mark.parametrize(("num_layers", "num_ranks"), [(-1, 2), (4, 0), (4, -1)])
def test_impossible_sizes_are_refused(num_layers: int, num_ranks: int) -> None:
    with pytest.raises(ValueError, match=f"{num_layers} layers on {num_ranks} ranks"):
        contiguous_owners(num_layers, num_ranks)
