"""The start-up line of a rank, which people paste into bug reports, and its counters as plain data."""

from dataclasses import dataclass

from kvply.config import PayloadKind, TransportKind
from kvply.kvpp.plan import StagePlan
from kvply.layout.budget import RankBudget

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    rank: int
    group_size: int
    stage: int
    plan: StagePlan
    budget: RankBudget
    num_blocks: int
    block_size_tokens: int
    available_bytes: int
    transport: TransportKind
    payload: PayloadKind

    @property
    def replicated_blocks(self) -> int:
        """Blocks the same memory would hold on this rank without KVPP."""
        return self.available_bytes // self.budget.logical_bytes_per_block

    @property
    def capacity_ratio(self) -> float:
        return self.num_blocks / max(1, self.replicated_blocks)

    def line(self) -> str:
        physical = self.budget.physical_bytes(self.num_blocks)
        tokens = self.num_blocks * self.block_size_tokens
        return (
            f"KVPP rank {self.rank}/{self.group_size} stage {self.stage}: owns "
            f"{self.plan.describe(self.rank)} of {self.plan.num_layers} "
            f"(+{len(self.plan.local_bundles)} MTP local); {self.num_blocks} blocks x "
            f"{self.block_size_tokens} = {tokens} tokens, replicated {self.replicated_blocks} blocks, "
            f"x{self.capacity_ratio:.2f}; {physical / _MIB:.1f} of {self.available_bytes / _MIB:.1f} MiB "
            f"({self.budget.physical_bytes_per_block} bytes per block, "
            f"{self.budget.largest_bytes_per_block} per scratch slot); transport {self.transport}, payload "
            f"{self.payload}; plan {self.plan.fingerprint.hex()[:12]}"
        )

    def as_dict(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "group_size": self.group_size,
            "stage": self.stage,
            "owned_layers": [self.plan.bundles[o].layer for o in self.plan.owned_ordinals(self.rank)],
            "num_layers": self.plan.num_layers,
            "num_blocks": self.num_blocks,
            "block_size_tokens": self.block_size_tokens,
            "replicated_blocks": self.replicated_blocks,
            "physical_bytes": self.budget.physical_bytes(self.num_blocks),
            "available_bytes": self.available_bytes,
            "transport": str(self.transport),
            "payload": str(self.payload),
        }
