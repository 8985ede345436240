"""Any sequence of steps on any small group: every interleaving is in order and every layer reads right."""

import dataclasses
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvply.config import PayloadKind
from kvply.kvpp.exchange.batches import DIRECT_MIN_BYTES, split_ranges
from kvply.kvpp.payload import total_bytes
from kvply.testing.virtual_device import Device, RandomWorkload, ScriptWriter, check, play, unequal_scene


@settings(max_examples=25, deadline=None)
@given(
    num_ranks=st.integers(1, 4),
    num_layers=st.integers(1, 6),
    payload=st.sampled_from(PayloadKind),
    has_all_reduce=st.booleans(),
    num_steps=st.integers(2, 6),
    seed=st.integers(0, 2**32),
)
def test_every_interleaving_is_in_order(
    num_ranks: int, num_layers: int, payload: PayloadKind, has_all_reduce: bool, num_steps: int, seed: int
) -> None:
    scene = dataclasses.replace(unequal_scene(num_ranks, num_layers, payload), has_all_reduce=has_all_reduce)
    steps = RandomWorkload(seed, scene.num_blocks, scene.block_size_tokens).steps(num_steps)
    recording = play(scene, ScriptWriter(scene).write(steps))
    for device in (Device(), Device(num_resident=1, is_launch_ordered=True)):
        assert check(recording, (seed,), device) == []


@given(
    steps=st.lists(st.tuples(st.integers(1, DIRECT_MIN_BYTES), st.integers(1, DIRECT_MIN_BYTES + 2)), max_size=20),
    staging_bytes=st.integers(0, 2 * DIRECT_MIN_BYTES),
)
def test_batches_cover_the_payload_in_order_and_fit(steps: list[tuple[int, int]], staging_bytes: int) -> None:
    """steps: (gap, length) of each range."""
    ranges, end = [], 0
    for gap, length in steps:
        ranges.append((end + gap, end + gap + length))
        end += gap + length
    batches = list(split_ranges(tuple(ranges), staging_bytes))
    assert [r for _, batch in batches for r in batch] == ranges
    for packed, batch in batches:
        assert packed == (len(batch) > 1)
        assert not packed or total_bytes(batch) <= staging_bytes
    for (_, batch), (_, following) in pairwise(batches):
        fits = total_bytes(batch) + total_bytes(following[:1]) <= staging_bytes
        is_short = max(total_bytes((r,)) for r in (*batch, following[0])) < DIRECT_MIN_BYTES
        assert not (fits and is_short), "a collective too many"
