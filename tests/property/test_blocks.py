from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvply.kvpp.blocks import BlockRuns
from support.plans import runs_of

NUM_BLOCKS = 1200
BULK = 257

SMALL_SETS = st.lists(st.integers(0, NUM_BLOCKS - 1), unique=True, max_size=12)
STRIDES = st.integers(1, 3)


class BlockRunsMachine(RuleBasedStateMachine):
    """BlockRuns against a plain Counter."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockRuns(NUM_BLOCKS)
        self.counts: Counter[int] = Counter()

    def held(self) -> list[int]:
        return sorted(block for block, count in self.counts.items() if count)

    def remove(self, ids: list[int]) -> None:
        self.blocks.remove(ids)
        self.counts.subtract(ids)

    @rule(ids=SMALL_SETS)
    def add_small(self, ids: list[int]) -> None:
        self.blocks.add(ids)
        self.counts.update(ids)

    @rule(start=st.integers(0, 400), stride=STRIDES, more=st.integers(0, 9), turned=st.booleans())
    def add_bulk(self, start: int, stride: int, more: int, turned: bool) -> None:
        ids = list(range(start, start + (BULK + more) * stride, stride))
        self.blocks.add(ids[::-1] if turned else ids)
        self.counts.update(ids)

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def remove_small(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.lists(st.sampled_from(self.held()), unique=True, max_size=12)))

    @precondition(lambda self: len(self.held()) >= BULK)
    @rule(stride=STRIDES, start=st.integers(0, 100))
    def remove_bulk(self, stride: int, start: int) -> None:
        held = self.held()
        some = held[start::stride]
        self.remove(some if len(some) >= BULK else held[-BULK:])

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def removing_what_is_not_held_is_an_error(self, block: int) -> None:
        if not self.counts[block]:
            with pytest.raises(KeyError):
                self.blocks.remove([block])

    @invariant()
    def same_as_the_model(self) -> None:
        self.blocks.check_integrity()
        assert self.blocks.runs == runs_of(self.held())
        assert self.blocks.num_held == len(self.held())


TestBlockRuns = BlockRunsMachine.TestCase
