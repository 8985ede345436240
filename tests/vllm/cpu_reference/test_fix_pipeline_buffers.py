"""``fixes/pipeline_buffers.py``: is the defect still in vLLM, and does the fix repair it?"""

import inspect
from types import SimpleNamespace

import pytest
import torch
from vllm.config import CompilationMode
from vllm.model_executor.models.utils import make_empty_intermediate_tensors_factory
from vllm.sequence import IntermediateTensors
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from kvply.vllm.cpu_reference.fixes import pipeline_buffers

MAX_NUM_TOKENS, HIDDEN = 8, 4


@pytest.fixture(autouse=True)
def restore_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sync_and_gather_intermediate_tensors"
    monkeypatch.setattr(GPUModelRunner, name, inspect.unwrap(getattr(GPUModelRunner, name)))


@pytest.fixture
def runner() -> CPUModelRunner:
    """A runner of a later pipeline stage after start-up in eager mode, with just what the method reads."""
    runner = object.__new__(CPUModelRunner)
    runner.intermediate_tensors = None
    runner.model = SimpleNamespace(
        make_empty_intermediate_tensors=make_empty_intermediate_tensors_factory(["hidden_states"], HIDDEN)
    )
    runner.max_num_tokens = MAX_NUM_TOKENS
    runner.model_config = SimpleNamespace(dtype=torch.float32)
    runner.device = torch.device("cpu")
    runner.vllm_config = SimpleNamespace(compilation_config=SimpleNamespace(mode=CompilationMode.NONE))
    runner.warming_up_model()
    return runner


def received(num_tokens: int) -> IntermediateTensors:
    return IntermediateTensors({"hidden_states": torch.randn(num_tokens, HIDDEN)})


def can_receive(runner: CPUModelRunner) -> bool:
    try:
        runner.sync_and_gather_intermediate_tensors(3, received(3), True)
    except AssertionError:
        return False
    return True


def test_vllm_still_has_the_defect(runner: CPUModelRunner) -> None:
    assert not can_receive(runner), "vLLM allocates the buffers now: delete fixes/pipeline_buffers.py"


def test_the_fix_repairs_it(runner: CPUModelRunner) -> None:
    pipeline_buffers.apply()

    for num_tokens in (3, MAX_NUM_TOKENS, 1):
        sent = received(num_tokens)
        got = runner.sync_and_gather_intermediate_tensors(num_tokens, sent, True)
        assert torch.equal(got["hidden_states"], sent["hidden_states"])


def test_the_buffers_are_allocated_once(runner: CPUModelRunner) -> None:
    pipeline_buffers.apply()
    runner.sync_and_gather_intermediate_tensors(3, received(3), True)
    buffers = runner.intermediate_tensors
    runner.sync_and_gather_intermediate_tensors(5, received(5), True)

    assert runner.intermediate_tensors is buffers


def test_applying_twice_wraps_once() -> None:
    pipeline_buffers.apply()
    wrapper = GPUModelRunner.sync_and_gather_intermediate_tensors
    pipeline_buffers.apply()

    assert GPUModelRunner.sync_and_gather_intermediate_tensors is wrapper
