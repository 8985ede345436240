"""Persistent bundles and scratch slots of one rank, laid over one arena."""

from collections.abc import Sequence

import torch

from kvply.errors import LayoutError
from kvply.kvpp.plan import StagePlan
from kvply.layout.arena import ArenaBuilder, Region
from kvply.layout.budget import NUM_SCRATCH_SLOTS, staging_blocks
from kvply.layout.bundle import Bundle


class StorageLayout:
    """Where everything of `rank` lies in its arena. Pure; the bytes come later.

    Order: owned bundles by ordinal, local bundles, scratch slots, staging. `size_bytes` is exactly
    `RankBudget.physical_bytes(num_blocks)`.
    """

    def __init__(self, plan: StagePlan, rank: int, num_blocks: int, *, has_staging: bool) -> None:
        self.plan = plan
        self.rank = rank
        self.num_blocks = num_blocks
        arena = ArenaBuilder()
        self.owned: dict[int, Region] = {
            ordinal: arena.take(plan.bundles[ordinal].size_bytes(num_blocks))
            for ordinal in plan.owned_ordinals(rank)
        }
        self.local: tuple[Region, ...] = tuple(
            arena.take(bundle.size_bytes(num_blocks)) for bundle in plan.local_bundles
        )
        largest = plan.largest_bytes_per_block
        self.scratch: tuple[Region, ...] = tuple(arena.take(largest * num_blocks) for _ in range(NUM_SCRATCH_SLOTS))
        num_staging = staging_blocks(num_blocks, largest) if has_staging else 0
        self.staging: Region = arena.take(num_staging * largest)
        self.size_bytes = arena.size_bytes

    def region(self, ordinal: int) -> Region:
        """Where this rank reads and writes the cache of `ordinal`: its own bundle, or a scratch slot."""
        owned = self.owned.get(ordinal)
        if owned is not None:
            return owned
        slot = self.scratch[ordinal % NUM_SCRATCH_SLOTS]
        return Region(slot.offset_bytes, self.plan.bundles[ordinal].size_bytes(self.num_blocks))

    def component_regions(self, bundle: Bundle, region: Region) -> list[tuple[str, Region]]:
        """(cache layer name, region) of each component of `bundle` when it lies in `region`."""
        offsets = bundle.component_offsets_bytes(self.num_blocks)
        return [
            (c.name, Region(region.offset_bytes + offset, c.page_bytes * self.num_blocks))
            for c, offset in zip(bundle.components, offsets, strict=True)
        ]

    def all_components(self) -> dict[str, Region]:
        """Region of every cache layer of the stage on this rank, target and local."""
        found: dict[str, Region] = {}
        for ordinal, bundle in enumerate(self.plan.bundles):
            found.update(self.component_regions(bundle, self.region(ordinal)))
        for bundle, region in zip(self.plan.local_bundles, self.local, strict=True):
            found.update(self.component_regions(bundle, region))
        return found


class RankStorage:
    """The arena's bytes, seen bundle by bundle.

    Owns `arena` (uint8, one dimension, `layout.size_bytes` long); the views handed to vLLM alias it and stay
    valid as long as this object lives.
    """

    def __init__(self, layout: StorageLayout, arena: torch.Tensor) -> None:
        self.layout = layout
        self.arena = arena
        self.check_integrity()

    def bundle(self, ordinal: int) -> torch.Tensor:
        """Bytes of the bundle as this rank sees it. Shape: [bundle bytes], uint8."""
        return self._view(self.layout.region(ordinal))

    def zero_scratch(self, ordinal: int, runs: Sequence[tuple[int, int]]) -> None:
        """Zero runs of blocks in the scratch slot of `ordinal`; nothing for a layer this rank owns.

        Given to the current (compute) stream.
        """
        if not runs or ordinal in self.layout.owned:  # nearly every step: this is on the path of every layer
            return
        buffer = self.bundle(ordinal)
        bundle = self.layout.plan.bundles[ordinal]
        for start, stop in bundle.block_ranges(self.layout.num_blocks, runs):
            buffer[start:stop].zero_()

    @property
    def staging(self) -> torch.Tensor:
        """Shape: [staging bytes], uint8; empty when the transport packs nothing."""
        return self._view(self.layout.staging)

    def _view(self, region: Region) -> torch.Tensor:
        return self.arena[region.offset_bytes : region.end_bytes]

    def check_integrity(self) -> None:
        """Raises LayoutError unless the arena is exactly the sum of disjoint regions."""
        layout, arena = self.layout, self.arena
        if arena.dtype != torch.uint8 or arena.dim() != 1 or not arena.is_contiguous():
            raise LayoutError(f"the arena must be a flat uint8 tensor, not {arena.dtype} {tuple(arena.shape)}")
        if arena.numel() != layout.size_bytes:
            raise LayoutError(f"the arena has {arena.numel()} bytes, the layout {layout.size_bytes}")
        end = 0
        for region in (*layout.owned.values(), *layout.local, *layout.scratch, layout.staging):
            if region.offset_bytes != end:
                raise LayoutError(f"region at {region.offset_bytes} does not follow the one before ({end})")
            end = region.end_bytes
        if end != arena.numel():
            raise LayoutError(f"regions end at {end}, the arena at {arena.numel()}")
