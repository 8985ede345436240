"""The data operations of TorchLane, alone with gloo on CPU: no order between streams is shown here."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from kvply.kvpp.exchange.torch_lane import TorchLane

RANGES = ((2, 6), (10, 13))


@pytest.fixture
def lane() -> Iterator[TorchLane]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        lane = TorchLane(torch.device("cpu"), dist.group.WORLD)
        yield lane
        lane.close()
    finally:
        dist.destroy_process_group()


def test_data_takes_the_same_way_as_on_a_device(lane: TorchLane) -> None:
    buffer, staged = torch.arange(16, dtype=torch.uint8), torch.zeros(7, dtype=torch.uint8)
    lane.pack(buffer, RANGES, staged)
    lane.broadcast(staged, 0)
    received = torch.zeros(16, dtype=torch.uint8)
    lane.unpack(staged, RANGES, received)
    assert received.tolist() == [0, 0, 2, 3, 4, 5, 0, 0, 0, 0, 10, 11, 12, 0, 0, 0]


def test_cpu_has_no_events_and_says_so(lane: TorchLane) -> None:
    with pytest.raises(RuntimeError, match="cpu backend doesn't support events"):
        lane.record_transfer()
