"""A lane on torch's device-agnostic streams, events and collectives (CUDA with NCCL, NPU with HCCL).

Not run on a device yet: what has been proved is the order in which `StreamExchange` uses a lane (on the
virtual device), and the data operations below on CPU with gloo. torch has no events on CPU.
"""

import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from kvply.kvpp.exchange import batches
from kvply.kvpp.exchange.lane import Lane
from kvply.kvpp.payload import Ranges

LAUNCH_ORDER_VARIABLE = "NCCL_LAUNCH_ORDER_IMPLICIT"

_DRAIN_S = 5.0
_POLL_S = 1e-3


def launch_order_reason(device_type: str, environ: Mapping[str, str]) -> str | None:
    """Why transfers beside compute could deadlock in this process, or None if nothing known speaks against them.

    A collective's kernel spins until its peers run theirs. If one rank's device runs the broadcast first and
    another's the model's all-reduce, and neither device has room for both, the group stands still. Launch
    order makes every device run them in the order in which the hosts gave them, which is the same everywhere.
    It covers NCCL only: the model's all-reduce has to be NCCL's too, not a custom one.
    """
    if device_type != "cuda" or environ.get(LAUNCH_ORDER_VARIABLE) == "1":
        return None
    return (
        f"a broadcast beside compute can deadlock with the model's all-reduce; set {LAUNCH_ORDER_VARIABLE}=1 "
        "and start with --disable-custom-all-reduce"
    )


class TorchLane(Lane[torch.Event]):
    """The compute stream is whatever stream is current on `device` at each call.

    group: used by nobody else; a broadcast of it has to follow the current stream without blocking the host.
        Its timeout is the deadline of every transfer.

    Tensors are views of the rank's arena, which outlives the lane; nothing else is allocated for the transfer
    stream, so the caching allocator need not be told (`record_stream`) about it.
    """

    keeps_time = True

    def __init__(self, device: torch.device, group: dist.ProcessGroup) -> None:
        self._device = device
        self._group = group
        self._transfer = torch.Stream(device=device)

    def record_compute(self) -> torch.Event:
        return self._record(torch.accelerator.current_stream(self._device))

    def record_transfer(self) -> torch.Event:
        return self._record(self._transfer)

    def compute_waits(self, event: torch.Event) -> None:
        torch.accelerator.current_stream(self._device).wait_event(event)

    def transfer_waits(self, event: torch.Event) -> None:
        self._transfer.wait_event(event)

    def broadcast(self, data: torch.Tensor, owner: int) -> None:
        with self._transfer:
            dist.broadcast(data, group=self._group, group_src=owner)

    def pack(self, buffer: torch.Tensor, ranges: Ranges, staged: torch.Tensor) -> None:
        with self._transfer:
            batches.pack(buffer, ranges, staged)

    def unpack(self, staged: torch.Tensor, ranges: Ranges, buffer: torch.Tensor) -> None:
        with self._transfer:
            batches.unpack(staged, ranges, buffer)

    def elapsed_s(self, begin: torch.Event, end: torch.Event) -> float | None:
        if not (begin.query() and end.query()):
            return None
        return begin.elapsed_time(end) / 1e3

    def close(self) -> None:
        end_s = time.monotonic() + _DRAIN_S
        while not self._transfer.query() and time.monotonic() < end_s:
            time.sleep(_POLL_S)

    def _record(self, stream: torch.Stream) -> torch.Event:
        event = torch.Event(device=self._device, enable_timing=True)
        event.record(stream)
        return event
