"""The stage a play is set in: layers, ranks, blocks. Everything is a multiple of one cell."""

from dataclasses import dataclass

from kvply.config import PayloadKind
from kvply.kvpp.payload import Ranges
from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle, Component

# Pages of consecutive layers. One skipped block of 48 or 96 KiB splits a payload, one of 16 KiB is filled; six
# blocks of 48 KiB in a row go in place, fewer are packed.
_PAGES_KIB = ((48, 16), (48,), (96, 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """cell_bytes: bytes that share one version tag; one token of every component is a multiple of it.

    has_all_reduce: whether every layer ends in a collective of the model's own, on the compute stream.

    No byte is ever allocated, so sizes can be those at which the real thresholds of packing and merging bite.
    """

    plan: StagePlan
    num_blocks: int
    block_size_tokens: int
    cell_bytes: int
    payload: PayloadKind = PayloadKind.ACTIVE
    has_all_reduce: bool = False

    @property
    def num_ranks(self) -> int:
        return self.plan.group_size

    def num_cells(self, ordinal: int) -> int:
        return self.plan.bundles[ordinal].size_bytes(self.num_blocks) // self.cell_bytes

    def token_ranges(self, bundle: Bundle, block: int, start: int, stop: int) -> Ranges:
        """Bytes of tokens `[start, stop)` of a block in every component of the bundle."""
        offsets = bundle.component_offsets_bytes(self.num_blocks)
        found = []
        for offset, page_bytes in zip(offsets, bundle.pages, strict=True):
            token_bytes, base = page_bytes // self.block_size_tokens, offset + block * page_bytes
            found.append((base + start * token_bytes, base + stop * token_bytes))
        return tuple(found)

    def block_ranges(self, bundle: Bundle, block: int) -> Ranges:
        return self.token_ranges(bundle, block, 0, self.block_size_tokens)


def unequal_scene(num_ranks: int, num_layers: int, payload: PayloadKind, num_blocks: int = 16) -> Scene:
    """Layers of three sizes, and one MTP layer that stays local. Blocks of two tokens."""
    bundles = [_bundle(layer, _PAGES_KIB[layer % len(_PAGES_KIB)]) for layer in range(num_layers)]
    plan = StagePlan.build(num_ranks, bundles, [_bundle(num_layers, (48,))])
    return Scene(plan=plan, num_blocks=num_blocks, block_size_tokens=2, cell_bytes=8 << 10, payload=payload)


def _bundle(layer: int, pages_kib: tuple[int, ...]) -> Bundle:
    return Bundle.of(layer, [Component(f"layers.{layer}.{i}", kib << 10) for i, kib in enumerate(pages_kib)])
