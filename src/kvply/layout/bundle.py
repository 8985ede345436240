"""Components and bundles: what one layer's cache consists of, in bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvply.errors import LayoutError

# Components follow each other without padding, so every page has to keep the next component aligned for the
# widest element a cache uses (fp64 scales do not exist; 16 also suits vector loads).
PAGE_ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Component:
    """One cache tensor of a layer (main KV, indexer KV, scales), as vLLM's spec describes it.

    `name` is vLLM's name of the cache layer; `page_bytes` is the size of one logical block of it.
    """

    name: str
    page_bytes: int

    def __post_init__(self) -> None:
        if self.page_bytes <= 0 or self.page_bytes % PAGE_ALIGNMENT_BYTES:
            raise LayoutError(
                f"cache layer {self.name}: a block of {self.page_bytes} bytes is not a positive multiple of "
                f"{PAGE_ALIGNMENT_BYTES} bytes; choose a --block-size that is a multiple of 16"
            )


@dataclass(frozen=True)
class Bundle:
    """All components of one layer, contiguous: component after component, each with all logical blocks.

    Components are ordered by falling page size, then by name. So the main KV comes first in every bundle, and
    a scratch slot shows bytes of the same kind to consecutive layers even when their bundles differ in size.
    """

    layer: int
    components: tuple[Component, ...]

    @classmethod
    def of(cls, layer: int, components: Sequence[Component]) -> "Bundle":
        if not components:
            raise LayoutError(f"layer {layer} has no cache components")
        return cls(layer, tuple(sorted(components, key=lambda c: (-c.page_bytes, c.name))))

    @cached_property
    def bytes_per_block(self) -> int:
        return sum(component.page_bytes for component in self.components)

    @cached_property
    def pages(self) -> tuple[int, ...]:
        """Page bytes in order: two bundles with equal pages have equal byte ranges for equal blocks."""
        return tuple(component.page_bytes for component in self.components)

    def size_bytes(self, num_blocks: int) -> int:
        return self.bytes_per_block * num_blocks

    def component_offsets_bytes(self, num_blocks: int) -> tuple[int, ...]:
        """Offset of each component from the start of the bundle."""
        offsets, offset = [], 0
        for page_bytes in self.pages:
            offsets.append(offset)
            offset += page_bytes * num_blocks
        return tuple(offsets)

    def block_ranges(self, num_blocks: int, runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Half-open byte ranges of runs of blocks (`[start, stop)`), component by component, rising."""
        for offset, page_bytes in zip(self.component_offsets_bytes(num_blocks), self.pages, strict=True):
            for start, stop in runs:
                yield offset + start * page_bytes, offset + stop * page_bytes
