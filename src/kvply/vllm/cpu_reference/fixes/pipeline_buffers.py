"""Receive buffers of pipeline stages with Model Runner V1 on CPU.

Target: ``vllm.v1.worker.gpu_model_runner.GPUModelRunner.sync_and_gather_intermediate_tensors``.

Wrong: it needs buffers that only a dummy run allocates, and in eager mode the CPU worker makes no dummy run.

Seen as: ``AssertionError: assert self.intermediate_tensors is not None`` on every stage but the first. Model
Runner V2 is not affected.

Fix: allocate the buffers, for the largest step, when they are first needed.

Remove when: ``tests/vllm/cpu_reference/test_fix_pipeline_buffers.py`` reports that the stock method copes.
"""

from collections.abc import Callable
from typing import Any

from kvply.vllm.cpu_reference.wrapping import wrap_once


def apply() -> None:
    """Wrap the method. Idempotent."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    wrap_once(GPUModelRunner, "sync_and_gather_intermediate_tensors", _allocating)


def _allocating(original: Callable[..., Any]) -> Callable[..., Any]:
    def sync_and_gather_intermediate_tensors(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return original(self, *args, **kwargs)

    return sync_and_gather_intermediate_tensors
