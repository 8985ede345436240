"""Plain rotary embedding of 3-D tensors on CPU.

Target: ``vllm.model_executor.layers.rotary_embedding.base.RotaryEmbedding.forward_cpu``.

Wrong: the C++ kernel it calls takes ``stride(-2)`` for the distance between tokens and ``size(-1)`` divided by
the head size for the number of heads. MLA and the indexer pass 3-D tensors [tokens, heads, head_size], so the
kernel rotates the wrong elements, and a token's result depends on its neighbours in the batch.

Seen as: outputs of models with ``rope_type`` "default" (GLM-5) that change with the batch. Models with
DeepSeek's yarn scaling are not affected.

Fix: 3-D tensors take the PyTorch implementation of the same class.

Remove when: ``tests/vllm/cpu_reference/test_fix_plain_rope.py`` reports that the stock method is right.
"""

from collections.abc import Callable
from typing import Any

from kvply.vllm.cpu_reference.wrapping import wrap_once


def apply() -> None:
    """Wrap the method. Idempotent."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    wrap_once(RotaryEmbedding, "forward_cpu", _native_for_3d)


def _native_for_3d(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward_cpu(self: Any, positions: Any, query: Any, key: Any = None) -> Any:
        if query.dim() == 3:
            return self.forward_native(positions, query, key)
        return original(self, positions, query, key)

    return forward_cpu
