"""KVPP on vLLM's GPU worker. Same code path as on CPU; not run on a device yet."""

from vllm.v1.worker.gpu_worker import Worker

from kvply.vllm.worker.base import KvppWorkerMixin


class KvppGPUWorker(KvppWorkerMixin, Worker):
    """Selected by the config hook on CUDA and ROCm."""
