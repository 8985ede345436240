"""Which broadcasts of the ranks are one and the same collective."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from kvply.testing.virtual_device.trace import Broadcast, Op, Position, Stream, Trace
from kvply.testing.virtual_device.violation import Rule, Violation


@dataclass(frozen=True, slots=True)
class Collective:
    """ops: the part of every rank, by rank."""

    ops: tuple[Op, ...]

    @property
    def source(self) -> Op:
        """The owner's part of a broadcast."""
        action = self.ops[0].action
        assert isinstance(action, Broadcast)
        return self.ops[action.owner]


def match(trace: Trace) -> tuple[list[Collective], list[Violation]]:
    """The k-th collective of a stream is the k-th of every rank; stops at the first that does not fit."""
    matched: list[Collective] = []
    for stream in Stream:
        for ops in zip_longest(*(trace.collectives(rank, stream) for rank in range(trace.num_ranks))):
            if len({_facts(op) for op in ops}) > 1:
                told = "; ".join(_describe(op) for op in ops)
                return matched, [Violation(Rule.COLLECTIVES_MATCH, f"ranks disagree: {told}")]
            matched.append(Collective(ops))
    return matched, []


def by_position(collectives: list[Collective]) -> Mapping[Position, Collective]:
    return {op.position: collective for collective in collectives for op in collective.ops}


def _facts(op: Op | None) -> object:
    return None if op is None else (op.label, op.action)


def _describe(op: Op | None) -> str:
    return "nothing" if op is None else f"{op}: {op.action}"
