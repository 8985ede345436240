"""Expert parallelism with unquantised experts on CPU.

Target: ``vllm.model_executor.layers.fused_moe.experts.cpu_moe.CPUUnquantizedExperts.apply``.

Wrong: it ignores ``expert_map``, so global expert ids index the rank's local experts, past the end of its
weights.

Seen as: a segmentation fault in ``cpu_fused_moe`` with ``enable_expert_parallel=True``.

Fix: translate the ids to local ones; experts of other ranks get weight 0 and the id of a local expert.

Remove when: ``tests/vllm/cpu_reference/test_fix_expert_map.py`` reports that the stock method honours the
map.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from kvply.vllm.cpu_reference.wrapping import wrap_once


def apply() -> None:
    """Wrap the method. Idempotent."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    wrap_once(CPUUnquantizedExperts, "apply", _with_local_ids)


def _with_local_ids(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def apply(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        expert_map = call.arguments["expert_map"]
        if expert_map is not None:
            call.arguments["topk_ids"], call.arguments["topk_weights"] = localize(
                expert_map, call.arguments["topk_ids"], call.arguments["topk_weights"]
            )
        return original(*call.args, **call.kwargs)

    return apply


def localize(
    expert_map: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Translate global expert ids; ``expert_map`` holds each expert's local id, or -1 if it is elsewhere."""
    local_ids = expert_map[topk_ids.long()]
    is_local = local_ids >= 0
    return local_ids.clamp(min=0).to(topk_ids.dtype), topk_weights.where(is_local, 0)
