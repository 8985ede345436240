"""Capacity numbers that were published or worked out by hand for real models, in bytes per token."""

from collections.abc import Sequence

import pytest

from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle, Component

# (page of the main KV components, of the indexer components): bytes per token.
Pages = tuple[tuple[int, ...], tuple[int, ...]]

BF16: Pages = ((1024, 128), (256,))
LI_INT8: Pages = ((1024, 128), (128, 2))
LI_FP8: Pages = ((1024, 128), (128, 4))
SFA_LI_FP8: Pages = ((656,), (128, 4))
DENSE: Pages = ((1152,), ())
CUDA_BF16: Pages = ((1152,), (132,))
CUDA_FP8: Pages = ((656,), (132,))

GLM52_INDEXED = (0, 1, *range(2, 78, 4))
HY4_INDEXED = (0, *range(1, 78, 4))
BLOCK_SIZE_TOKENS = 128


def stage_plan(
    tp: int, layers: Sequence[int], pages: Pages, indexed: Sequence[int], mtp_layers: Sequence[int] = ()
) -> StagePlan:
    def bundle(layer: int) -> Bundle:
        main, indexer = pages
        sizes = main + indexer if layer in indexed or layer in mtp_layers else main
        return Bundle.of(layer, [Component(f"{layer}.{i}", s * BLOCK_SIZE_TOKENS) for i, s in enumerate(sizes)])

    return StagePlan.build(tp, [bundle(layer) for layer in layers], [bundle(layer) for layer in mtp_layers])


def replicated_and_worst_rank(plan: StagePlan) -> tuple[int, int]:
    """Bytes per token of the whole stage, and of its most loaded rank under KVPP."""
    budgets = [plan.budget(rank, has_staging=False) for rank in range(plan.group_size)]
    (logical,) = {b.logical_bytes_per_block for b in budgets}
    physical = max(b.physical_bytes_per_block for b in budgets)
    assert logical % BLOCK_SIZE_TOKENS == physical % BLOCK_SIZE_TOKENS == 0
    return logical // BLOCK_SIZE_TOKENS, physical // BLOCK_SIZE_TOKENS


@pytest.mark.parametrize(
    ("pages", "layers", "replicated", "worst_rank"),
    [
        pytest.param(BF16, range(78), 95_232, 15_360, id="bf16"),
        pytest.param(BF16, range(38), 46_592, 9_344, id="bf16-stage0"),
        pytest.param(BF16, range(38, 78), 48_640, 9_088, id="bf16-stage1"),
        pytest.param(LI_FP8, range(78), 92_628, 14_616, id="li132"),
        pytest.param(LI_FP8, range(38), 45_228, 8_724, id="li132-stage0"),
        pytest.param(LI_FP8, range(38, 78), 47_400, 8_592, id="li132-stage1"),
        pytest.param(LI_INT8, range(78), 92_586, 14_604, id="li130"),
        pytest.param(LI_INT8, range(38), 45_206, 8_714, id="li130-stage0"),
        pytest.param(LI_INT8, range(38, 78), 47_380, 8_584, id="li130-stage1"),
        pytest.param(SFA_LI_FP8, range(78), 53_940, 8_664, id="sfa-li132"),
        pytest.param(SFA_LI_FP8, range(38), 26_380, 5_252, id="sfa-li132-stage0"),
        pytest.param(SFA_LI_FP8, range(38, 78), 27_560, 5_120, id="sfa-li132-stage1"),
    ],
)
def test_glm_5_2_on_eight_ranks(pages: Pages, layers: Sequence[int], replicated: int, worst_rank: int) -> None:
    plan = stage_plan(8, layers, pages, GLM52_INDEXED)
    assert replicated_and_worst_rank(plan) == (replicated, worst_rank)


def test_glm_5_2_mtp_layer_is_paid_by_every_rank() -> None:
    plan = stage_plan(8, range(78), BF16, GLM52_INDEXED, mtp_layers=(78,))
    assert replicated_and_worst_rank(plan) == (96_640, 16_768)


def test_published_glm_5_2_counts_of_two_nodes_need_the_same_memory() -> None:
    plan = stage_plan(8, range(38, 78), BF16, GLM52_INDEXED)
    budgets = [plan.budget(rank, has_staging=False) for rank in range(8)]
    available_bytes = 27_014_300_000
    assert available_bytes // budgets[0].logical_bytes_per_block * BLOCK_SIZE_TOKENS == 555_392
    assert min(b.blocks_that_fit(available_bytes) for b in budgets) * BLOCK_SIZE_TOKENS == 2_972_416


def test_published_deepseek_v2_lite_counts_in_512_mib_on_four_ranks() -> None:
    bundles = [Bundle.of(layer, [Component(f"{layer}", 16 * 1152)]) for layer in range(27)]
    budgets = [StagePlan.build(4, bundles).budget(rank, has_staging=False) for rank in range(4)]
    available_bytes = 512 << 20
    assert available_bytes // budgets[0].logical_bytes_per_block * 16 == 17_248
    assert min(b.blocks_that_fit(available_bytes) for b in budgets) * 16 == 51_776


def gain(tp: int, stages: Sequence[int], pages: Pages, indexed: Sequence[int], mtp_layers: Sequence[int]) -> float:
    """Blocks with KVPP over blocks without, with equal KV memory on all ranks of all stages."""
    numbers, first = [], 0
    for size in stages:
        layers = range(first, first + size)
        first += size
        local = mtp_layers if first == sum(stages) else ()
        numbers.append(replicated_and_worst_rank(stage_plan(tp, layers, pages, indexed, local)))
    return max(t for t, _ in numbers) / max(p for _, p in numbers)


TPS = (2, 4, 8, 16)
UNIFORM_GAINS = {
    ("DeepSeek-V2-Lite", (27,), 0): (1.69, 3.00, 4.50, 6.75),
    ("DeepSeek-V2-Lite", (14, 13), 0): (1.56, 2.33, 3.50, 4.67),
    ("DeepSeek-V2-Lite", (7, 7, 7, 6), 0): (1.17, 1.75, 2.33, 2.33),
    ("DeepSeek-V2", (60,), 0): (1.88, 3.53, 6.00, 10.00),
    ("DeepSeek-V3", (61,), 0): (1.85, 3.39, 6.10, 10.17),
    ("DeepSeek-V3", (31, 30), 0): (1.72, 3.10, 5.17, 7.75),
    ("DeepSeek-V3", (15, 15, 16, 15), 0): (1.60, 2.67, 4.00, 5.33),
    ("DeepSeek-V3 with MTP", (61,), 1): (1.82, 3.26, 5.64, 8.86),
    ("DeepSeek-V3 with MTP", (31, 30), 1): (1.72, 2.82, 4.43, 6.20),
    ("DeepSeek-V3 with MTP", (15, 15, 16, 15), 1): (1.45, 2.29, 3.20, 4.00),
    ("GLM-5.1", (78,), 0): (1.90, 3.55, 6.50, 11.14),
    ("GLM-5.1", (19, 20, 20, 19), 0): (1.67, 2.86, 4.00, 5.00),
    ("GLM-5.1 with MTP", (39, 39), 1): (1.74, 3.08, 5.00, 6.67),
    ("GLM-4.7-Flash", (47,), 0): (1.81, 3.36),
    ("GLM-4.7-Flash with MTP", (12, 12, 12, 11), 1): (1.33, 2.00),
    ("Mistral-Small-4", (18, 18), 0): (1.64, 2.57, 3.60, 4.50),
    ("LongCat-Flash", (56,), 0): (1.87, 3.50, 6.22, 9.33),
    ("LongCat-Flash with MTP", (28, 28), 1): (1.71, 2.90, 4.14, 5.80),
    ("Youtu-LLM-2B", (8, 8, 8, 8), 0): (1.33, 2.00, 2.67, 2.67),
}


@pytest.mark.parametrize(("model", "gains"), UNIFORM_GAINS.items(), ids=str)
def test_gain_of_models_whose_layers_are_all_alike(
    model: tuple[str, tuple[int, ...], int], gains: tuple[float, ...]
) -> None:
    _, stages, num_mtp = model
    mtp_layers = range(sum(stages), sum(stages) + num_mtp)
    found = [gain(tp, stages, DENSE, (), mtp_layers) for tp, _ in zip(TPS, gains, strict=False)]
    assert found == pytest.approx(gains, abs=0.005)


INDEXED_GAINS = [
    ("GLM-5.2", BF16, (78,), 0, (1.87, 3.44, 6.20, 10.19)),
    ("GLM-5.2", BF16, (38, 40), 0, (1.79, 3.17, 5.21, 6.91)),
    ("GLM-5.2", BF16, (18, 20, 20, 20), 0, (1.61, 2.60, 3.45, 4.32)),
    ("GLM-5.2", BF16, (78,), 1, (1.85, 3.33, 5.76, 8.99)),
    ("GLM-5.2", BF16, (38, 40), 1, (1.75, 3.03, 4.77, 6.31)),
    ("GLM-5.2", LI_FP8, (78,), 0, (1.89, 3.49, 6.34, 10.62)),
    ("GLM-5.2", LI_FP8, (18, 20, 20, 20), 1, (1.58, 2.53, 3.36, 3.97)),
    ("GLM-5.2", SFA_LI_FP8, (38, 40), 0, (1.79, 3.18, 5.25, 6.99)),
    ("GLM-5.2", CUDA_BF16, (38, 40), 0, (1.80, 3.24, 5.43, 7.38)),
    ("GLM-5.2", CUDA_FP8, (78,), 1, (1.85, 3.34, 5.79, 9.06)),
    ("Hy4", BF16, (78,), 0, (1.88, 3.48, 6.20, 10.48)),
    ("Hy4", BF16, (37, 41), 1, (1.72, 2.91, 4.42, 6.48)),
    ("Hy4", CUDA_FP8, (17, 20, 20, 21), 0, (1.59, 2.52, 3.83, 4.62)),
    ("Hy4", CUDA_BF16, (17, 20, 20, 21), 1, (1.55, 2.38, 3.53, 4.18)),
]


@pytest.mark.parametrize(("model", "pages", "stages", "num_mtp", "gains"), INDEXED_GAINS)
def test_gain_of_models_that_share_indexers_between_layers(
    model: str, pages: Pages, stages: tuple[int, ...], num_mtp: int, gains: tuple[float, ...]
) -> None:
    indexed = {"GLM-5.2": GLM52_INDEXED, "Hy4": HY4_INDEXED}[model]
    assert len(indexed) == 21
    found = [gain(tp, stages, pages, indexed, range(78, 78 + num_mtp)) for tp in TPS]
    assert found == pytest.approx(gains, abs=0.005)
