"""Small plans, histories and storages for tests of the KVPP core."""

from collections.abc import Iterable, Sequence

import torch

from kvply.kvpp.history import StepHistory
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.storage import RankStorage, StorageLayout
from kvply.layout.bundle import Bundle, Component


def make_bundle(layer: int, *page_bytes: int) -> Bundle:
    """A bundle whose components are named `<layer>.<position>`."""
    return Bundle.of(layer, [Component(f"{layer}.{i}", page) for i, page in enumerate(page_bytes)])


def make_plan(
    group_size: int,
    target_pages: Sequence[Sequence[int]],
    local_pages: Sequence[Sequence[int]] = (),
    first_layer: int = 0,
) -> StagePlan:
    """A plan with one target layer per entry of `target_pages`, MTP layers after the last of them."""
    bundles = [make_bundle(first_layer + i, *pages) for i, pages in enumerate([*target_pages, *local_pages])]
    return StagePlan.build(group_size, bundles[: len(target_pages)], bundles[len(target_pages) :])


def make_storage(plan: StagePlan, rank: int, num_blocks: int, *, has_staging: bool = False) -> RankStorage:
    """Zeroed storage of `rank`."""
    layout = StorageLayout(plan, rank, num_blocks, has_staging=has_staging)
    return RankStorage(layout, torch.zeros(layout.size_bytes, dtype=torch.uint8))


def make_history(*runs: tuple[int, int]) -> StepHistory:
    """The history of a step in which exactly the blocks of `runs` hold some."""
    return StepHistory(runs, sum(stop - start for start, stop in runs), {})


def runs_of(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Maximal half-open intervals of a set of ids, the plain way."""
    runs: list[tuple[int, int]] = []
    for block in sorted(set(ids)):
        if runs and runs[-1][1] == block:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return tuple(runs)
