"""Happens-before over a trace, by vector clocks.

Streams are in order; a wait adds what its event stands for; a receiver finishes a broadcast only after its
owner has started it. That is all a broadcast is relied upon for: an owner may finish before anyone received,
and receivers may finish before the owner. The model's own collectives are relied upon for nothing. The less is
assumed, the more has to be ordered by events.
"""

from collections.abc import Mapping

from kvply.testing.virtual_device.rendezvous import Collective
from kvply.testing.virtual_device.trace import Broadcast, Op, Position, Stream, Trace, Wait
from kvply.testing.virtual_device.violation import Rule, Violation

Clock = tuple[int, ...]
"""Per stream, how many of its operations have finished for certain."""


class HappensBefore:
    """Covers every legal interleaving of the trace at once.

    deadlocks: operations that can never finish; they and what follows them have no place in the order.
    """

    def __init__(self, trace: Trace, collectives: Mapping[Position, Collective]) -> None:
        self._trace = trace
        self._collectives = collectives
        self._columns = {key: column for column, key in enumerate(trace.streams)}
        self._num_done = dict.fromkeys(trace.streams, 0)
        self._starts: dict[Position, Clock] = {}
        self._ends: dict[Position, Clock] = {}
        self.deadlocks = self._run()

    def before(self, first: Op, second: Op) -> bool:
        """Whether `first` has certainly finished when `second` starts."""
        rank, stream, nth = first.position
        return self._starts[second.position][self._columns[rank, stream]] > nth

    def _run(self) -> list[Violation]:
        """Advance every stream as far as it goes, until none goes further."""
        while any(self._advance(key, ops) for key, ops in self._trace.streams.items()):
            pass
        stuck = [ops[n] for key, ops in self._trace.streams.items() if (n := self._num_done[key]) < len(ops)]
        return [Violation(Rule.NO_DEADLOCK, f"{op} can never finish") for op in stuck]

    def _advance(self, key: tuple[int, Stream], ops: list[Op]) -> bool:
        first = self._num_done[key]
        while self._num_done[key] < len(ops) and self._finish(key, ops[self._num_done[key]]):
            self._num_done[key] += 1
        return self._num_done[key] > first

    def _finish(self, key: tuple[int, Stream], op: Op) -> bool:
        """Start `op`, and finish it if all it depends on is known."""
        nth = op.position.nth
        start = self._ends[op.position._replace(nth=nth - 1)] if nth else (0,) * len(self._columns)
        self._starts[op.position] = start
        known = self._known_at_end(op, start)
        if known is None:
            return False
        end = [max(pair) for pair in zip(start, known, strict=True)]
        end[self._columns[key]] = nth + 1
        self._ends[op.position] = tuple(end)
        return True

    def _known_at_end(self, op: Op, start: Clock) -> Clock | None:
        """What is certain when `op` has finished, beyond what was at its start; None if not known yet."""
        if isinstance(op.action, Wait):
            return self._ends.get(op.action.event)
        if isinstance(op.action, Broadcast):
            return self._starts.get(self._collectives[op.position].source.position)
        return start
