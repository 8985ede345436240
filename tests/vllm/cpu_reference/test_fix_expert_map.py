"""``fixes/expert_map.py``: is the defect still in vLLM, and does the fix repair it?

The rank of these tests holds experts 1 and 0 of four, in this order. Tokens are routed to experts 0 and 1 only
where vLLM's own code runs, so that ignoring the map gives wrong numbers instead of reading past the weights.
"""

import inspect

import pytest
import torch
from vllm._custom_ops import cpu_prepack_moe_weight
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FUSED_MOE_UNQUANTIZED_CONFIG,
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
)
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

from kvply.vllm.cpu_reference.fixes import expert_map as fix

HIDDEN, INTERMEDIATE = 64, 32
EXPERT_MAP = torch.tensor([1, 0, -1, -1], dtype=torch.int32)


@pytest.fixture(autouse=True)
def restore_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CPUUnquantizedExperts, "apply", inspect.unwrap(CPUUnquantizedExperts.apply))


class LocalExperts:
    """Two experts with random weights, run by vLLM's CPU kernel and written out in torch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.gate_up = torch.randn(2, 2 * INTERMEDIATE, HIDDEN, generator=generator) / HIDDEN**0.5
        self.down = torch.randn(2, HIDDEN, INTERMEDIATE, generator=generator) / INTERMEDIATE**0.5
        self.tokens = torch.randn(6, HIDDEN, generator=generator)
        self.routing_weights = torch.rand(6, 2, generator=generator)

    def run(self, expert_ids: torch.Tensor) -> torch.Tensor:
        moe = FusedMoEConfig(
            num_experts=4,
            experts_per_token=2,
            hidden_dim=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_local_experts=2,
            num_logical_experts=4,
            activation=MoEActivation.SILU,
            device="cpu",
            routing_method=RoutingMethodType.Default,
            moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
            in_dtype=torch.float32,
        )
        experts = CPUUnquantizedExperts(moe, FUSED_MOE_UNQUANTIZED_CONFIG)
        output = torch.zeros_like(self.tokens)
        experts.apply(
            output=output,
            hidden_states=self.tokens,
            w1=cpu_prepack_moe_weight(self.gate_up, experts.isa),
            w2=cpu_prepack_moe_weight(self.down, experts.isa),
            topk_weights=self.routing_weights,
            topk_ids=expert_ids,
            activation=MoEActivation.SILU,
            global_num_experts=4,
            expert_map=EXPERT_MAP,
            a1q_scale=None,
            a2_scale=None,
            workspace13=torch.empty(0),
            workspace2=torch.empty(0),
            expert_tokens_meta=None,
            apply_router_weight_on_input=False,
        )
        return output

    def expected(self, expert_ids: torch.Tensor) -> torch.Tensor:
        output = torch.zeros_like(self.tokens)
        for row, token in enumerate(self.tokens):
            for weight, expert in zip(self.routing_weights[row], expert_ids[row].tolist(), strict=True):
                local = int(EXPERT_MAP[expert])
                if local >= 0:
                    gate, up = (self.gate_up[local] @ token).chunk(2)
                    output[row] += weight * (self.down[local] @ (torch.nn.functional.silu(gate) * up))
        return output


def is_right(expert_ids: torch.Tensor) -> bool:
    experts = LocalExperts()
    return torch.allclose(experts.run(expert_ids), experts.expected(expert_ids), atol=1e-4)


ONLY_LOCAL = torch.tensor([[0, 1], [1, 0], [0, 1], [0, 1], [1, 0], [1, 0]], dtype=torch.int32)
WITH_REMOTE = torch.tensor([[0, 3], [2, 1], [2, 3], [0, 1], [1, 2], [3, 0]], dtype=torch.int32)


def test_vllm_still_has_the_defect() -> None:
    assert not is_right(ONLY_LOCAL), "vLLM honours expert_map on CPU now: delete fixes/expert_map.py"


@pytest.mark.parametrize("expert_ids", [ONLY_LOCAL, WITH_REMOTE], ids=["local", "local and remote"])
def test_the_fix_repairs_it(expert_ids: torch.Tensor) -> None:
    fix.apply()

    assert is_right(expert_ids)


def test_applying_twice_wraps_once() -> None:
    fix.apply()
    wrapper = CPUUnquantizedExperts.apply
    fix.apply()

    assert CPUUnquantizedExperts.apply is wrapper
