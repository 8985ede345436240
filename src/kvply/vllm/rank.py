"""KVPP on one vLLM worker: from its config to a running step machine. The worker classes only forward here."""

import os
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

from kvply.config import KvppConfig, TransportKind
from kvply.errors import CapacityError, UnsupportedError
from kvply.kvpp.blocks import runs_of
from kvply.kvpp.exchange.base import Exchange
from kvply.kvpp.exchange.choose import choose_transport, host_identity
from kvply.kvpp.exchange.collective import CollectiveExchange
from kvply.kvpp.exchange.shm import SharedFile, ShmExchange, connect
from kvply.kvpp.exchange.stream import StreamExchange
from kvply.kvpp.exchange.torch_lane import TorchLane, launch_order_reason
from kvply.kvpp.group import check_agreement, gather_integers
from kvply.kvpp.history import HistoryTracker
from kvply.kvpp.payload import PayloadPlanner
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.runtime import KvppRuntime
from kvply.kvpp.storage import RankStorage, StorageLayout
from kvply.kvpp.watchdog import Watchdog
from kvply.layout.budget import RankBudget
from kvply.observe.metrics import RankCounters
from kvply.vllm import hooks, report, translate
from kvply.vllm.groups import build_group
from kvply.vllm.logs import get_logger

logger = get_logger("kvply.kvpp")

# sysexits.h EX_SOFTWARE: what a rank ends with when it finds itself stuck and cannot unwind.
_EXIT_STALLED = 70


class KvppRank:
    """Life: construct (group) -> plan_memory -> start (storage, exchange, hooks) -> steps -> close."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """Collective over the group: builds it and settles the transport.

        Raises UnsupportedError if broadcasts beside compute could deadlock in this process.
        """
        if (reason := launch_order_reason(device.type, os.environ)) is not None:
            raise UnsupportedError(f"enable_kvpp is not supported here: {reason}")
        self.config = KvppConfig.from_mapping(vllm_config.additional_config)
        self._vllm_config = vllm_config
        self._device = device
        self.group = build_group(vllm_config.parallel_config, device, self.config.kvpp_timeout_s)
        hosts = [row[0] for row in self._gather([host_identity()])]
        self.transport = choose_transport(self.config.kvpp_transport, device.type, hosts)
        self.counters = RankCounters()
        self._available_bytes = 0
        self._plan: StagePlan | None = None
        self._runtime: KvppRuntime | None = None
        self._tracker: HistoryTracker | None = None
        self._watchdog: Watchdog | None = None

    @property
    def plan(self) -> StagePlan:
        assert self._plan is not None, "the plan is made by plan_memory"
        return self._plan

    @property
    def budget(self) -> RankBudget:
        return self.plan.budget(self.group.rank, has_staging=self._has_staging)

    def warm_up(self) -> None:
        """Make the data group allocate its buffers now, so that memory profiling sees them."""
        probe = torch.zeros(1, dtype=torch.uint8, device=self._device)
        torch.distributed.broadcast(probe, group=self.group.data, group_src=0)

    def plan_memory(self, specs: Mapping[str, KVCacheSpec], available_bytes: int) -> int:
        """Turn this rank's physical budget into the logical bytes that vLLM's planner divides into blocks.

        Collective over the group. Raises CapacityError if not one block fits.
        """
        model = self._vllm_config.model_config
        self._plan = translate.stage_plan(
            specs,
            self.group.size,
            model.get_total_num_hidden_layers(),
            has_mtp=self._vllm_config.speculative_config is not None,
        )
        check_agreement(self.group.control, self._plan.fingerprint, timeout_s=self.config.kvpp_timeout_s)
        self._available_bytes = available_bytes
        num_blocks = self.budget.blocks_that_fit(available_bytes)
        if num_blocks == 0:
            raise CapacityError(
                f"KVPP rank {self.group.rank}: {available_bytes} bytes of KV cache memory do not hold one block "
                f"of {self.budget.physical_bytes_per_block} bytes; raise --gpu-memory-utilization or "
                f"--kv-cache-memory-bytes"
            )
        return self.budget.logical_bytes(num_blocks)

    def allocate(self, num_blocks: int) -> "RankAllocation":
        """All bytes KVPP will ever use on this rank. Raises CapacityError if they exceed the budget."""
        needed = self.budget.physical_bytes(num_blocks)
        if needed > self._available_bytes:
            raise CapacityError(
                f"KVPP rank {self.group.rank}: {num_blocks} blocks (num_gpu_blocks_override) take {needed} bytes, "
                f"available are {self._available_bytes}; at most "
                f"{self.budget.blocks_that_fit(self._available_bytes)} blocks fit"
            )
        layouts = [
            StorageLayout(self.plan, rank, num_blocks, has_staging=self._has_staging)
            for rank in range(self.group.size)
        ]
        size_bytes = layouts[self.group.rank].size_bytes
        if self.transport is TransportKind.SHM:
            shared = SharedFile(f"kvpp-arena-{self.group.rank}", size_bytes)
            return RankAllocation(layouts, shared.tensor(), shared)
        return RankAllocation(layouts, torch.zeros(size_bytes, dtype=torch.uint8, device=self._device), None)

    def start(
        self,
        allocation: "RankAllocation",
        kv_cache_config: KVCacheConfig,
        model: nn.Module,
        forward_context: Mapping[str, object],
    ) -> None:
        """Connect to the peers and put hooks on the model; collective over the group. Steps may follow."""
        num_blocks = kv_cache_config.num_blocks
        layout = allocation.layouts[self.group.rank]
        self.storage = RankStorage(layout, allocation.arena)
        exchange = self._build_exchange(allocation)
        payloads = PayloadPlanner(self.config.kvpp_payload, num_blocks, cost_bytes=exchange.cost_bytes)
        self._runtime = KvppRuntime(self.plan, self.storage, exchange, payloads, self.counters)
        block_size_tokens = translate.block_size_tokens(kv_cache_config)
        self._tracker = HistoryTracker(num_blocks, block_size_tokens)
        hooks.install(self.plan, model, forward_context, self._runtime.before_layer)
        self._watchdog = Watchdog(self.config.kvpp_timeout_s, self._look, self._stop_process)
        self._watchdog.start()
        self.summary = report.RankSummary(
            rank=self.group.rank,
            group_size=self.group.size,
            stage=self.group.stage,
            plan=self.plan,
            budget=self.budget,
            num_blocks=num_blocks,
            block_size_tokens=block_size_tokens,
            available_bytes=self._available_bytes,
            transport=self.transport,
            payload=self.config.kvpp_payload,
        )
        logger.info(self.summary.line())

    def open_step(self, output: SchedulerOutput) -> bool:
        """Take in scheduler output; returns whether a step was opened (it has tokens to compute)."""
        assert self._tracker is not None
        assert self._runtime is not None
        requests = translate.scheduled_requests(output)
        history = self._tracker.advance(requests, output.finished_req_ids)
        if not output.total_num_scheduled_tokens:
            return False
        self._runtime.begin_step(
            history,
            cache_written_before_forward=translate.writes_cache_before_forward(output),
            zeroed_runs=runs_of(output.new_block_ids_to_zero or ()),
        )
        return True

    def close_step(self) -> None:
        """After the forward of the step that `open_step` opened."""
        assert self._runtime is not None
        self._runtime.end_step()

    def close(self) -> None:
        """Stop threads. Idempotent, also before `start`."""
        if self._watchdog is not None:
            self._watchdog.close()
        if self._runtime is not None:
            self._runtime.close()

    @property
    def _has_staging(self) -> bool:
        return self.transport is TransportKind.COLLECTIVE

    def _build_exchange(self, allocation: "RankAllocation") -> Exchange:
        timeout_s = self.config.kvpp_timeout_s
        if allocation.shared is not None:
            peers = connect(self.group.rank, self.group.size, allocation.shared, self._gather)
            return ShmExchange(self.group.rank, allocation.layouts, peers, timeout_s)
        if self._device.type == "cpu":
            return CollectiveExchange(self.group.data, self.storage.staging, timeout_s)
        lane = TorchLane(self._device, self.group.data)
        return StreamExchange(lane, self.group.rank, self.group.size, self.storage.staging)

    def _gather(self, values: Sequence[int]) -> list[list[int]]:
        return gather_integers(self.group.control, values, timeout_s=self.config.kvpp_timeout_s)

    def _look(self) -> tuple[tuple[int, int], bool]:
        assert self._runtime is not None
        return self._runtime.progress, self._runtime.is_open

    def _stop_process(self) -> None:
        assert self._runtime is not None
        peers = [rank for rank in range(self.group.size) if rank != self.group.rank]
        logger.critical(
            "KVPP rank %d stopped getting on at %s: no progress for %g s, so a peer (ranks %s) is lost or "
            "stalled outside KVPP. Stopping this process so that the engine can report the failure.",
            self.group.rank,
            self._runtime.position,
            self.config.kvpp_timeout_s,
            peers,
        )
        os._exit(_EXIT_STALLED)


class RankAllocation:
    """The bytes of one rank and where everything in them lies, for every rank of the group.

    arena: shape [layouts[rank].size_bytes], uint8. shared: the file behind it, if peers may read it.
    """

    def __init__(self, layouts: list[StorageLayout], arena: torch.Tensor, shared: SharedFile | None) -> None:
        self.layouts = layouts
        self.arena = arena
        self.shared = shared
