"""What KVPP does in a vLLM worker: five public methods, each forwarded to `KvppRank`."""

from typing import TYPE_CHECKING, Any

from kvply.vllm.allocation import allocating_from
from kvply.vllm.rank import KvppRank

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.worker.gpu_worker import Worker as _Base
else:
    _Base = object


class KvppWorkerMixin(_Base):
    """Comes before vLLM's worker class in the bases. All methods run on the worker's main thread."""

    kvpp: KvppRank

    def init_device(self) -> None:
        super().init_device()
        self.kvpp = KvppRank(self.vllm_config, self.device)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self.kvpp.warm_up()

    def determine_available_memory(self) -> int:
        """Logical bytes: as many blocks as fit physically, at the price vLLM's planner believes in."""
        available_bytes = super().determine_available_memory()
        return self.kvpp.plan_memory(self.get_kv_cache_spec(), available_bytes)

    def initialize_from_config(self, kv_cache_config: "KVCacheConfig") -> None:
        allocation = self.kvpp.allocate(kv_cache_config.num_blocks)
        with allocating_from(allocation.layouts[self.kvpp.group.rank], allocation.arena):
            super().initialize_from_config(kv_cache_config)
        forward_context = self.vllm_config.compilation_config.static_forward_context
        self.kvpp.start(allocation, kv_cache_config, self.get_model(), forward_context)

    def execute_model(self, scheduler_output: "SchedulerOutput") -> Any:
        opened = self.kvpp.open_step(scheduler_output)
        output = super().execute_model(scheduler_output)
        if opened:
            self.kvpp.close_step()
        return output

    def shutdown(self) -> None:
        if hasattr(self, "kvpp"):
            self.kvpp.close()
        super().shutdown()

    def kvpp_stats(self) -> dict[str, object]:
        """Plan, capacity and counters of this rank as plain data, for `collective_rpc("kvpp_stats")`."""
        return {
            **self.kvpp.summary.as_dict(),
            "last_step": self.kvpp.counters.last_step.as_dict(),
            "total": self.kvpp.counters.total.as_dict(),
        }
