"""Hooks sit on the modules that touch a cache first, and on nothing they do not know."""

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache

from kvply.errors import UnsupportedError
from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle, Component
from kvply.vllm import hooks


class Attention(MLAAttention):
    """The class that counts, without vLLM's constructor: hooks look at types, not at contents."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class IndexerCache(DeepseekV32IndexerCache):
    def __init__(self) -> None:
        nn.Module.__init__(self)


class Indexer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k_cache = IndexerCache()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.indexer = Indexer()
        self.attn = Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attn(self.indexer(x))  # type: ignore[no-any-return]


def test_the_indexer_asks_before_the_attention_module() -> None:
    layers = nn.Sequential(Layer(), Layer())
    bundles = [Bundle.of(i, [Component(f"{i}.attn", 64), Component(f"{i}.k", 32)]) for i in range(2)]
    context: dict[str, object] = {}
    for index, layer in enumerate(layers):
        context |= {f"{index}.attn": layer.attn, f"{index}.k": layer.indexer.k_cache}
    asked: list[int] = []
    order: list[str] = []
    for layer in layers:
        layer.indexer.register_forward_hook(lambda *_: order.append(f"indexer after {len(asked)}"))
    hooks.install(StagePlan.build(2, bundles), layers, context, asked.append)
    layers(torch.zeros(1))
    assert asked == [0, 0, 1, 1]
    assert order == ["indexer after 1", "indexer after 3"]


def test_an_unknown_owner_of_a_cache_is_refused() -> None:
    plan = StagePlan.build(2, [Bundle.of(0, [Component("0.attn", 64)])])
    with pytest.raises(UnsupportedError, match=r"0\.attn belongs to a torch\.nn\.modules\.linear\.Linear"):
        hooks.install(plan, nn.Sequential(), {"0.attn": nn.Linear(1, 1)}, lambda _: None)
