"""When a lane on torch streams would be refused. What it does is in tests/dist."""

import pytest

from kvply.kvpp.exchange.torch_lane import LAUNCH_ORDER_VARIABLE, launch_order_reason


@pytest.mark.parametrize("environ", [{}, {LAUNCH_ORDER_VARIABLE: "0"}])
def test_cuda_without_launch_order_can_deadlock(environ: dict[str, str]) -> None:
    reason = launch_order_reason("cuda", environ)
    assert reason is not None
    assert f"{LAUNCH_ORDER_VARIABLE}=1" in reason


def test_launch_order_is_what_cuda_needs() -> None:
    assert launch_order_reason("cuda", {LAUNCH_ORDER_VARIABLE: "1"}) is None


def test_the_variable_is_nccl_s() -> None:
    assert launch_order_reason("npu", {}) is None
