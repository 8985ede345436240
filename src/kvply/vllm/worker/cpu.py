"""KVPP on vLLM's CPU worker."""

from vllm.v1.worker.cpu_worker import CPUWorker

from kvply.vllm.worker.base import KvppWorkerMixin


class KvppCPUWorker(KvppWorkerMixin, CPUWorker):
    """Selected by the config hook on the CPU platform."""
