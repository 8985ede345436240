"""Predicted capacity, against published numbers."""

import pytest

from kvply.errors import ConfigError
from kvply.planner.estimate import estimate
from kvply.planner.model_facts import ModelFacts
from kvply.planner.report import estimate_lines

V2_LITE = ModelFacts("DeepSeek-V2-Lite", ((1152,),) * 27, 0)
V3 = ModelFacts("DeepSeek-V3", ((1152,),) * 61, 1)


def glm52(indexer_bytes: int) -> ModelFacts:
    full = {0, 1, 2, *range(6, 78, 4)}
    return ModelFacts(
        "GLM-5.2", tuple((1152, indexer_bytes) if layer in full else (1152,) for layer in range(78)), 1
    )


@pytest.mark.parametrize(
    ("facts", "ranks", "split", "mtp", "ratio"),
    [
        (V2_LITE, 4, None, False, 3.00),
        (V3, 8, None, False, 6.10),
        (V3, 8, None, True, 5.64),
        (glm52(256), 8, None, False, 6.20),
        (glm52(256), 8, [38, 40], False, 5.21),
        (glm52(132), 8, None, False, 6.34),
    ],
)
def test_published_ratios(facts: ModelFacts, ranks: int, split: list[int] | None, mtp: bool, ratio: float) -> None:
    found = estimate(facts, group_size=ranks, layers_per_stage=split, with_mtp=mtp)
    assert found.capacity_ratio == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize(("ranks", "split"), [(0, None), (2, [20, 20]), (2, [61, 0])])
def test_a_split_that_does_not_fit_the_model_is_refused(ranks: int, split: list[int] | None) -> None:
    with pytest.raises(ConfigError, match="do not fit DeepSeek-V3"):
        estimate(V3, group_size=ranks, layers_per_stage=split)


def test_it_says_so_when_kvpp_does_not_pay() -> None:
    tiny = ModelFacts("tiny", ((1152,),) * 3, 0)
    lines = estimate_lines(tiny, estimate(tiny, group_size=2))
    assert "x0.75" in "\n".join(lines)
    assert "does not pay" in lines[-1]
    assert "does not pay" not in "\n".join(estimate_lines(V3, estimate(V3, group_size=8)))
