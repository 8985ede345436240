"""An estimate in words."""

from kvply.planner.estimate import Estimate, StageEstimate
from kvply.planner.model_facts import ModelFacts


def estimate_lines(facts: ModelFacts, found: Estimate) -> list[str]:
    """Human-readable lines: bytes per token of each stage, then the ratio and what it means."""
    ratio = found.capacity_ratio
    lines = [
        f"{facts.name}: {facts.num_layers} layers, {facts.num_mtp_layers} MTP",
        *(_stage_line(stage) for stage in found.stages),
        f"KV capacity in the same memory: x{ratio:.2f}",
    ]
    if ratio <= 1:
        lines.append("KVPP does not pay here: two scratch slots cost more than sharing saves. Use more ranks.")
    return lines


def _stage_line(stage: StageEstimate) -> str:
    return (
        f"  layers {stage.first_layer}-{stage.last_layer}: {stage.replicated_bytes:,.0f} bytes per token on every "
        f"rank, {stage.worst_rank_bytes:,.0f} with KVPP on the fullest"
    )
