"""A counted set of block ids that knows its runs, at a cost per change that follows the change."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

# Above this many ids in one change, numpy over the whole counter array beats bisection per id.
_BULK_IDS = 256


def runs_of(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Maximal half-open intervals of the distinct `ids`, rising."""
    runs: list[tuple[int, int]] = []
    for block in sorted(ids):
        if runs and runs[-1][1] == block:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return tuple(runs)


class BlockRuns:
    """Multiset of block ids below `num_blocks`; `runs` are the maximal intervals of ids held at least once.

    `add` and `remove` cost O(changed ids), independent of how many ids are held (bulk changes cost one
    vectorised pass). Ids within one call must be distinct. Not thread-safe.
    """

    def __init__(self, num_blocks: int) -> None:
        self._counts = np.zeros(num_blocks, dtype=np.int32)
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._runs: tuple[tuple[int, int], ...] | None = ()
        self.num_held = 0

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Sorted, disjoint, non-adjacent half-open intervals `[start, stop)`.

        The same object until the set of held ids changes; the first look after a change costs O(runs).
        """
        if self._runs is None:
            self._runs = tuple(zip(self._starts, self._stops, strict=True))
        return self._runs

    def add(self, ids: Sequence[int]) -> None:
        if len(ids) > _BULK_IDS:
            self._change_bulk(ids, 1)
            return
        counts = self._counts
        for block in ids:
            counts[block] += 1
            if counts[block] == 1:
                self._insert(block)

    def remove(self, ids: Sequence[int]) -> None:
        """Raises KeyError if an id is not held."""
        if len(ids) > _BULK_IDS:
            self._change_bulk(ids, -1)
            return
        counts = self._counts
        for block in ids:
            if counts[block] == 0:
                raise KeyError(block)
            counts[block] -= 1
            if counts[block] == 0:
                self._delete(block)

    def check_integrity(self) -> None:
        """Raises ValueError unless runs, counter and counts tell the same story."""
        held = set(np.flatnonzero(self._counts).tolist())
        runs = tuple(zip(self._starts, self._stops, strict=True))
        told = {block for start, stop in runs for block in range(start, stop)}
        if held != told or len(held) != self.num_held or (self._counts < 0).any():
            raise ValueError(f"block runs {runs} do not match the {len(held)} counted ids")
        if any(start <= stop for (_, stop), (start, _) in pairwise(runs)):
            raise ValueError(f"block runs {runs} are not maximal")
        if self.runs != runs:
            raise ValueError(f"block runs {self.runs} were kept from before a change to {runs}")

    def _insert(self, block: int) -> None:
        self._runs = None
        starts, stops = self._starts, self._stops
        at = bisect_left(starts, block)
        joins_left = at > 0 and stops[at - 1] == block
        joins_right = at < len(starts) and starts[at] == block + 1
        if joins_left and joins_right:
            stops[at - 1] = stops[at]
            del starts[at], stops[at]
        elif joins_left:
            stops[at - 1] = block + 1
        elif joins_right:
            starts[at] = block
        else:
            starts.insert(at, block)
            stops.insert(at, block + 1)
        self.num_held += 1

    def _delete(self, block: int) -> None:
        self._runs = None
        starts, stops = self._starts, self._stops
        at = bisect_right(starts, block) - 1
        start, stop = starts[at], stops[at]
        if stop - start == 1:
            del starts[at], stops[at]
        elif block == start:
            starts[at] = block + 1
        elif block == stop - 1:
            stops[at] = block
        else:
            stops[at] = block
            starts.insert(at + 1, block + 1)
            stops.insert(at + 1, stop)
        self.num_held -= 1

    def _change_bulk(self, ids: Sequence[int], by: int) -> None:
        index = np.asarray(ids, dtype=np.int64)
        if by < 0 and (missing := index[self._counts[index] == 0]).size:
            raise KeyError(int(missing[0]))
        self._runs = None
        self._counts[index] += by
        held = np.flatnonzero(self._counts)
        self.num_held = int(held.size)
        breaks = np.flatnonzero(np.diff(held) != 1) + 1
        self._starts = held[np.concatenate(([0], breaks))].tolist() if held.size else []
        self._stops = (held[np.concatenate((breaks - 1, [-1]))] + 1).tolist() if held.size else []
