"""Byte intervals as cell indices."""

import numpy as np

from kvply.kvpp.payload import Ranges
from kvply.testing.virtual_device.trace import Tags


def cells_of(ranges: Ranges, cell_bytes: int) -> Tags:
    """Indices of the cells that `ranges` cover, in order. Raises ValueError if an interval cuts a cell."""
    if any(start % cell_bytes or stop % cell_bytes for start, stop in ranges):
        raise ValueError(f"{ranges} are not made of cells of {cell_bytes} bytes")
    pieces = [np.arange(start // cell_bytes, stop // cell_bytes, dtype=np.int64) for start, stop in ranges]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def overlaps(some: Ranges, others: Ranges) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
