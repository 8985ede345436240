"""The one global hook: after vLLM has built its config, validate ours and swap the worker class."""

import functools
import os
from typing import Any

from kvply.config import KvppConfig
from kvply.errors import UnsupportedError
from kvply.kvpp.exchange.torch_lane import LAUNCH_ORDER_VARIABLE
from kvply.vllm import contract
from kvply.vllm.logs import get_logger

logger = get_logger("kvply.kvpp")

# Worker class vLLM's platform chose -> the same class with KVPP mixed in.
WORKERS: dict[str, str] = {
    "vllm.v1.worker.cpu_worker.CPUWorker": "kvply.vllm.worker.cpu.KvppCPUWorker",
    "vllm.v1.worker.gpu_worker.Worker": "kvply.vllm.worker.gpu.KvppGPUWorker",
}

_INSTALLED = "_kvply_config_hook"


def install() -> None:
    """Run `enable_if_configured` after every `VllmConfig.__post_init__`. Idempotent."""
    from vllm.config import VllmConfig

    original = VllmConfig.__post_init__
    if getattr(original, _INSTALLED, False):
        return

    @functools.wraps(original)
    def post_init(self: VllmConfig, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        enable_if_configured(self)

    setattr(post_init, _INSTALLED, True)
    VllmConfig.__post_init__ = post_init


def enable_if_configured(vllm_config: Any) -> None:
    """Turn KVPP on in `vllm_config` if its `additional_config` asks for it.

    Idempotent: vLLM copies and re-validates configs. Raises ConfigError for malformed keys, ContractError for
    a vLLM that is not as expected, UnsupportedError for a combination KVPP refuses.
    """
    additional = vllm_config.additional_config
    if not isinstance(additional, dict):
        return
    config = KvppConfig.from_mapping(additional)
    if not config.enable_kvpp or vllm_config.model_config is None:
        return
    contract.verify()
    parallel = vllm_config.parallel_config
    if parallel.worker_cls in WORKERS.values():
        return
    from kvply.vllm.refusals import refuse_unsupported

    refuse_unsupported(vllm_config)
    if parallel.tensor_parallel_size * parallel.prefill_context_parallel_size == 1:
        logger.warning(
            "enable_kvpp has no effect: with TP x PCP = 1 there is only one copy of the cache. Stock vLLM runs."
        )
        return
    parallel.worker_cls = _worker_for(parallel.worker_cls)
    if parallel.worker_cls == WORKERS["vllm.v1.worker.gpu_worker.Worker"]:
        _order_collectives(parallel)


def _order_collectives(parallel: Any) -> None:
    """Keep a broadcast beside compute from deadlocking with the model's all-reduce (see `launch_order_reason`).

    Worker processes inherit the variable; each checks it before it builds its group.
    """
    parallel.disable_custom_all_reduce = True
    os.environ.setdefault(LAUNCH_ORDER_VARIABLE, "1")


def _worker_for(worker_cls: str) -> str:
    found = WORKERS.get(worker_cls)
    if found is None:
        raise UnsupportedError(
            f"enable_kvpp does not know how to extend worker class {worker_cls}; it extends "
            f"{', '.join(WORKERS)}. Remove --worker-cls or enable_kvpp"
        )
    return found
