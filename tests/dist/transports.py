"""How tests build one rank's end of each CPU transport."""

import torch
import torch.distributed as dist

from kvply.kvpp.exchange.collective import CollectiveExchange
from kvply.kvpp.exchange.shm import SharedFile, ShmExchange, connect
from kvply.kvpp.group import gather_integers
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.storage import RankStorage, StorageLayout
from kvply.testing.transport_suite import RankEnd


def build_collective(group: dist.ProcessGroup, plan: StagePlan, num_blocks: int, timeout_s: float) -> RankEnd:
    layout = StorageLayout(plan, dist.get_rank(group), num_blocks, has_staging=True)
    storage = RankStorage(layout, torch.zeros(layout.size_bytes, dtype=torch.uint8))
    return RankEnd(storage, CollectiveExchange(group, storage.staging, timeout_s))


def build_shm(group: dist.ProcessGroup, plan: StagePlan, num_blocks: int, timeout_s: float) -> RankEnd:
    rank, size = dist.get_rank(group), plan.group_size
    layouts = [StorageLayout(plan, r, num_blocks, has_staging=False) for r in range(size)]
    arena = SharedFile(f"kvpp-arena-{rank}", layouts[rank].size_bytes)
    peers = connect(rank, size, arena, lambda values: gather_integers(group, values, timeout_s=timeout_s))
    storage = RankStorage(layouts[rank], arena.tensor())
    return RankEnd(storage, ShmExchange(rank, layouts, peers, timeout_s))
