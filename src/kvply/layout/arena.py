"""The one allocation of a rank: owned bundles, local bundles, two scratch slots, staging, back to back."""

from dataclasses import dataclass

from kvply.errors import LayoutError


@dataclass(frozen=True, slots=True)
class Region:
    """Half-open byte interval `[offset_bytes, end_bytes)` of the arena."""

    offset_bytes: int
    size_bytes: int

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.size_bytes


class ArenaBuilder:
    """Hands out consecutive regions; the sum of them is the size of the arena."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def take(self, size_bytes: int) -> Region:
        if size_bytes < 0:
            raise LayoutError(f"a region cannot have {size_bytes} bytes")
        region = Region(self.size_bytes, size_bytes)
        self.size_bytes = region.end_bytes
        return region
