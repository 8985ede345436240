"""``fixes/plain_rope.py``: is the defect still in vLLM, and does the fix repair it?"""

import inspect

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

from kvply.vllm.cpu_reference.fixes import plain_rope

HEAD_SIZE = 16
BASE = 10000.0


@pytest.fixture(autouse=True)
def restore_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = inspect.unwrap(RotaryEmbedding.forward_cpu)
    monkeypatch.setattr(RotaryEmbedding, "forward_cpu", stock)


@pytest.fixture
def rope() -> RotaryEmbedding:
    with set_current_vllm_config(VllmConfig()):
        return RotaryEmbedding(HEAD_SIZE, HEAD_SIZE, 64, BASE, False, torch.float32)


def rotate(positions: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    """Neighbouring values as the two parts of a complex number, turned by an angle per position and pair."""
    frequencies = BASE ** (-torch.arange(0, HEAD_SIZE, 2, dtype=torch.float64) / HEAD_SIZE)
    angles = positions.double()[:, None, None] * frequencies
    pairs = torch.view_as_complex(heads.double().reshape(*heads.shape[:-1], -1, 2))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2).to(heads.dtype)


def rope_is_right(rope: RotaryEmbedding) -> bool:
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([3, 9, 4, 27])
    query = torch.randn(4, 5, HEAD_SIZE, generator=generator)
    key = torch.randn(4, 1, HEAD_SIZE, generator=generator)
    expected = rotate(positions, query), rotate(positions, key)
    got = rope.forward_cpu(positions, query.clone(), key.clone())
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, expected, strict=True))


def test_vllm_still_has_the_defect(rope: RotaryEmbedding) -> None:
    assert not rope_is_right(rope), "vLLM rotates 3-D tensors correctly now: delete fixes/plain_rope.py"


def test_the_fix_repairs_it(rope: RotaryEmbedding) -> None:
    plain_rope.apply()

    assert rope_is_right(rope)


def test_flat_tensors_still_take_vllms_kernel(rope: RotaryEmbedding) -> None:
    positions = torch.tensor([3, 9, 4])
    query, key = torch.randn(3, 2 * HEAD_SIZE), torch.randn(3, HEAD_SIZE)
    stock = rope.forward_cpu(positions, query.clone(), key.clone())

    plain_rope.apply()

    fixed = rope.forward_cpu(positions, query.clone(), key.clone())
    assert all(torch.equal(a, b) for a, b in zip(stock, fixed, strict=True))


def test_applying_twice_wraps_once() -> None:
    plain_rope.apply()
    wrapper = RotaryEmbedding.forward_cpu
    plain_rope.apply()

    assert RotaryEmbedding.forward_cpu is wrapper
