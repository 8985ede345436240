"""The ranks that hold identical caches, and the process groups KVPP talks over."""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from vllm.config import ParallelConfig
from vllm.distributed.parallel_state import get_pp_group


@dataclass(frozen=True)
class KvppGroup:
    """rank: this rank's place in the group. stage: its pipeline stage.

    control: gloo group for start-up agreement. data: group of the collective transport, used for nothing else.
    """

    rank: int
    size: int
    stage: int
    control: dist.ProcessGroup
    data: dist.ProcessGroup


def build_group(parallel: ParallelConfig, device: torch.device, timeout_s: float) -> KvppGroup:
    """Collective over the group: TP, or PCP x TP, never across stages or data-parallel replicas.

    vLLM numbers ranks DP x PP x PCP x TP with TP running fastest, so a group is a run of consecutive ranks.
    """
    size = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    global_rank = dist.get_rank()
    first = global_rank // size * size
    ranks = list(range(first, first + size))
    timeout = timedelta(seconds=timeout_s)

    def new_group(backend: str) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(
            ranks, timeout=timeout, backend=backend, use_local_synchronization=True
        )
        return group

    control = new_group("gloo")
    data = new_group(dist.get_default_backend_for_device(device))
    return KvppGroup(global_rank - first, size, get_pp_group().rank_in_group, control, data)
