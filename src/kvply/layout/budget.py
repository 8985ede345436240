"""How many blocks fit into a rank's memory, with and without KVPP.

Per rank, with P = sum(owned bundles) + local (MTP) bundles + 2 x largest target bundle, each in bytes per
block: `blocks` fit when `blocks * P + staging_blocks(blocks) * largest <= available`. (Formula of the KVPP
design document, section 2.2, plus the bounded staging buffer of the packed payload.)
"""

from bisect import bisect_right
from dataclasses import dataclass

NUM_SCRATCH_SLOTS = 2

# Staging is what the packed payload costs: at most 1/64 of a scratch slot, and no more than a transport can
# use to amortise its latency.
STAGING_FRACTION = 64
STAGING_MAX_BYTES = 16 << 20


def staging_blocks(num_blocks: int, largest_bytes_per_block: int) -> int:
    """Blocks of the largest bundle that the staging buffer holds; equal on all ranks of a group."""
    most = max(1, STAGING_MAX_BYTES // largest_bytes_per_block)
    return min(most, -(-num_blocks // STAGING_FRACTION))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBudget:
    """Bytes per logical block that one rank pays, by purpose."""

    owned_bytes_per_block: int
    local_bytes_per_block: int
    largest_bytes_per_block: int
    logical_bytes_per_block: int
    has_staging: bool

    @property
    def physical_bytes_per_block(self) -> int:
        """The P of the formula: without staging, which does not grow with every block."""
        scratch = NUM_SCRATCH_SLOTS * self.largest_bytes_per_block
        return self.owned_bytes_per_block + self.local_bytes_per_block + scratch

    def physical_bytes(self, num_blocks: int) -> int:
        """Every byte KVPP allocates on this rank for `num_blocks` logical blocks."""
        total = num_blocks * self.physical_bytes_per_block
        if self.has_staging and num_blocks:
            total += staging_blocks(num_blocks, self.largest_bytes_per_block) * self.largest_bytes_per_block
        return total

    def blocks_that_fit(self, available_bytes: int) -> int:
        """Largest number of logical blocks whose physical bytes fit; 0 if not even one does."""
        most = max(0, available_bytes // self.physical_bytes_per_block)
        return bisect_right(range(1, most + 1), available_bytes, key=self.physical_bytes)

    def logical_bytes(self, num_blocks: int) -> int:
        """What vLLM's planner believes `num_blocks` blocks cost."""
        return num_blocks * self.logical_bytes_per_block
