"""Capacity with and without KVPP for a model, a group size and a pipeline split."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvply.errors import ConfigError
from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle, Component
from kvply.planner.model_facts import ModelFacts


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One stage, in bytes per token: `replicated` without KVPP, `worst_rank` with it on its fullest rank."""

    first_layer: int
    last_layer: int
    replicated_bytes: float
    worst_rank_bytes: float


@dataclass(frozen=True, slots=True)
class Estimate:
    stages: tuple[StageEstimate, ...]

    @property
    def capacity_ratio(self) -> float:
        """Blocks with KVPP over blocks without, for equal memory on every rank."""
        replicated = max(stage.replicated_bytes for stage in self.stages)
        return replicated / max(stage.worst_rank_bytes for stage in self.stages)


def estimate(
    facts: ModelFacts,
    *,
    group_size: int,
    layers_per_stage: Sequence[int] | None = None,
    block_size_tokens: int = 64,
    with_mtp: bool = False,
) -> Estimate:
    """Predict from bytes alone; an engine measures. Raises ConfigError if the split does not fit the model."""
    split = list(layers_per_stage or [facts.num_layers])
    if group_size < 1 or min(split) < 1 or sum(split) != facts.num_layers:
        raise ConfigError(
            f"stages of {split} layers on groups of {group_size} ranks do not fit {facts.name}, "
            f"which has {facts.num_layers} layers"
        )
    stages, first = [], 0
    for index, num_layers in enumerate(split):
        is_last = index == len(split) - 1
        num_mtp = facts.num_mtp_layers if with_mtp and is_last else 0
        stages.append(_stage(facts, first, num_layers, num_mtp, group_size, block_size_tokens))
        first += num_layers
    return Estimate(tuple(stages))


def _stage(
    facts: ModelFacts, first: int, num_layers: int, num_mtp: int, group_size: int, block_size_tokens: int
) -> StageEstimate:
    def bundle(layer: int, sizes: Sequence[int]) -> Bundle:
        return Bundle.of(layer, [Component(f"{layer}.{i}", b * block_size_tokens) for i, b in enumerate(sizes)])

    targets = [bundle(layer, facts.bytes_per_token[layer]) for layer in range(first, first + num_layers)]
    # An MTP layer has every component a layer of the model can have.
    local = [bundle(facts.num_layers + i, max(facts.bytes_per_token, key=sum)) for i in range(num_mtp)]
    plan = StagePlan.build(group_size, targets, local)
    budgets = [plan.budget(rank, has_staging=False) for rank in range(group_size)]
    return StageEstimate(
        first_layer=first,
        last_layer=first + num_layers - 1,
        replicated_bytes=budgets[0].logical_bytes_per_block / block_size_tokens,
        worst_rank_bytes=max(b.physical_bytes_per_block for b in budgets) / block_size_tokens,
    )
