import dataclasses

import pytest

from kvply.errors import LayoutError
from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle, Component
from support.plans import make_bundle, make_plan


def test_bundles_are_put_into_execution_order() -> None:
    targets = [make_bundle(layer, 16) for layer in (7, 5, 6)]
    local = [make_bundle(layer, 16) for layer in (9, 8)]
    plan = StagePlan.build(2, targets, local)
    assert [bundle.layer for bundle in plan.bundles] == [5, 6, 7]
    assert [bundle.layer for bundle in plan.local_bundles] == [8, 9]
    assert plan.num_layers == 3


def test_owners_are_contiguous_over_ordinals() -> None:
    plan = make_plan(2, [[16]] * 5, first_layer=38)
    assert plan.owners == (0, 0, 0, 1, 1)
    assert plan.owned_ordinals(0) == (0, 1, 2)
    assert plan.owned_ordinals(1) == (3, 4)


def test_stage_without_target_layer_is_refused() -> None:
    with pytest.raises(LayoutError, match="no target layer"):
        StagePlan.build(2, [], [make_bundle(0, 16)])


@pytest.mark.parametrize("local_layer", [0, 2])
def test_layer_with_two_bundles_is_refused(local_layer: int) -> None:
    targets = [make_bundle(layer, 16) for layer in (0, 1)]
    local = [make_bundle(layer, 16) for layer in (local_layer, 2)]
    with pytest.raises(LayoutError, match="more than one bundle"):
        StagePlan.build(2, targets, local)


def test_budget_follows_what_the_rank_owns() -> None:
    plan = make_plan(2, [[64, 32], [64], [64, 48]], local_pages=[[64, 16]])
    first, second = (plan.budget(rank, has_staging=True) for rank in (0, 1))
    assert (first.owned_bytes_per_block, second.owned_bytes_per_block) == (96 + 64, 112)
    for budget in (first, second):
        assert budget.local_bytes_per_block == 80
        assert budget.largest_bytes_per_block == 112
        assert budget.logical_bytes_per_block == 96 + 64 + 112 + 80
        assert budget.has_staging


def test_larger_mtp_bundle_does_not_widen_the_scratch_slots() -> None:
    assert make_plan(2, [[64]], local_pages=[[256]]).largest_bytes_per_block == 64


def test_rank_beyond_the_last_layer_pays_for_scratch_and_mtp_only() -> None:
    budget = make_plan(4, [[64], [64]], local_pages=[[32]]).budget(3, has_staging=False)
    assert budget.owned_bytes_per_block == 0
    assert budget.physical_bytes_per_block == 32 + 2 * 64


def test_fingerprint_does_not_depend_on_the_order_of_inputs() -> None:
    targets, local = [make_bundle(0, 64), make_bundle(1, 64, 16)], [make_bundle(2, 64), make_bundle(3, 16)]
    turned = StagePlan.build(2, targets[::-1], local[::-1])
    assert StagePlan.build(2, targets, local).fingerprint == turned.fingerprint


def test_fingerprint_sees_every_fact_of_the_plan() -> None:
    plan = make_plan(2, [[64], [64]], local_pages=[[64]])
    renamed = Bundle.of(0, [Component("other", 64)])
    others = [
        make_plan(3, [[64], [64]], local_pages=[[64]]),
        make_plan(2, [[64], [32]], local_pages=[[64]]),
        make_plan(2, [[64], [64, 16]], local_pages=[[64]]),
        make_plan(2, [[64], [64]], local_pages=[[32]]),
        make_plan(2, [[64], [64], [64]]),
        make_plan(2, [[64], [64]], local_pages=[[64]], first_layer=1),
        dataclasses.replace(plan, owners=(0, 0)),
        dataclasses.replace(plan, bundles=(renamed, plan.bundles[1])),
    ]
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)


@pytest.mark.parametrize(("rank", "words"), [(0, "layers 38-39"), (1, "layer 40"), (2, "layer 41")])
def test_owned_layers_in_words(rank: int, words: str) -> None:
    assert make_plan(3, [[16]] * 4, first_layer=38).describe(rank) == words


def test_owning_nothing_in_words() -> None:
    assert make_plan(3, [[16]] * 2).describe(2) == "no layer"
