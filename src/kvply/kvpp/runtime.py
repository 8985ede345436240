"""The per-step state machine of KVPP on one rank.

    begin_step -> before_layer(0) -> ... -> before_layer(n - 1) -> end_step

`before_layer(i)` waits for ordinal i's history and starts ordinal i + 1's, so at most one transfer is under
way, into a slot whose last user has been given to the compute stream already. In a step without history all
of it is a no-op and no byte moves.
"""

from dataclasses import dataclass, field

from kvply.errors import StepOrderError
from kvply.kvpp.exchange.base import Exchange, Ticket, Transfer
from kvply.kvpp.history import StepHistory
from kvply.kvpp.payload import PayloadPlanner
from kvply.kvpp.plan import StagePlan
from kvply.kvpp.storage import RankStorage
from kvply.observe.metrics import RankCounters, StepCounters


@dataclass(slots=True)
class _OpenStep:
    """zeroed_runs: see `begin_step`. next_ordinal: the layer whose history has not been waited for yet.

    ticket: the transfer of `next_ordinal`, if it was started.
    """

    index: int
    needs_broadcast: bool
    zeroed_runs: tuple[tuple[int, int], ...] = ()
    next_ordinal: int = 0
    ticket: Ticket | None = None
    counters: StepCounters = field(default_factory=StepCounters)


class KvppRuntime:
    """Not thread-safe; every method runs on the thread that runs the model."""

    def __init__(
        self,
        plan: StagePlan,
        storage: RankStorage,
        exchange: Exchange,
        payloads: PayloadPlanner,
        counters: RankCounters,
    ) -> None:
        self._plan = plan
        self._storage = storage
        self._buffers = [storage.bundle(ordinal) for ordinal in range(plan.num_layers)]
        self._exchange = exchange
        self._payloads = payloads
        self._counters = counters
        self._step: _OpenStep | None = None
        self._num_steps = 0

    @property
    def position(self) -> str:
        """Where the rank is, in words, for diagnostics from another thread."""
        step = self._step
        if step is None:
            return f"after step {self._num_steps - 1}" if self._num_steps else "before the first step"
        layer = self._plan.bundles[max(0, step.next_ordinal - 1)].layer
        return f"layer {layer}, step {step.index}"

    @property
    def is_open(self) -> bool:
        return self._step is not None

    @property
    def progress(self) -> tuple[int, int]:
        """Grows whenever the rank gets on: (steps begun, layers passed in the open step)."""
        step = self._step
        return self._num_steps, step.next_ordinal if step is not None else -1

    def begin_step(
        self,
        history: StepHistory,
        *,
        cache_written_before_forward: bool = False,
        zeroed_runs: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Open a step; starts ordinal 0's transfer unless the cache is still to be written before the forward
        (zeroing, block copies), in which case layer 0 starts and waits by itself.

        zeroed_runs: runs of new blocks that the engine zeroes in every layer before the forward. A scratch slot
        has shown other layers since, so it is zeroed again for each layer, before that layer's transfer.

        Raises StepOrderError if the step before was not closed.
        """
        if self._step is not None:
            raise StepOrderError(f"step {self._step.index} is still open")
        step = _OpenStep(self._num_steps, history.needs_broadcast, zeroed_runs)
        self._num_steps += 1
        self._step = step
        step.counters.steps = 1
        if not step.needs_broadcast:
            return
        step.counters.steps_with_history = 1
        self._payloads.open(history)
        if not cache_written_before_forward:
            step.ticket = self._start(step, 0)

    def before_layer(self, ordinal: int) -> None:
        """Return once the layer's cache may be read and written by work given to the compute stream.

        Called before the first cache access of the layer; further calls for the same layer in the same step
        do nothing, and so do calls outside a step (warm-up, profiling, dummy runs).
        Raises StepOrderError if a layer is skipped or comes back, and what `Exchange.wait` raises.
        """
        step = self._step
        if step is None or ordinal == step.next_ordinal - 1:
            return
        if ordinal != step.next_ordinal:
            raise StepOrderError(
                f"layer {self._plan.bundles[ordinal].layer} wants its cache in step {step.index}, but it is "
                f"the turn of ordinal {step.next_ordinal}"
            )
        if step.needs_broadcast:
            ticket = step.ticket or self._start(step, ordinal)
            self._finish(step, ticket)
            step.ticket = self._start(step, ordinal + 1) if ordinal + 1 < self._plan.num_layers else None
        else:
            self._storage.zero_scratch(ordinal, step.zeroed_runs)
        step.next_ordinal = ordinal + 1

    def end_step(self) -> None:
        """Close the step after the forward. Raises StepOrderError if a layer never asked for its cache."""
        step = self._step
        if step is None:
            raise StepOrderError("no step is open")
        if step.next_ordinal != self._plan.num_layers:
            layer = self._plan.bundles[step.next_ordinal].layer
            raise StepOrderError(f"step {step.index} ended before layer {layer} asked for its cache")
        self._step = None
        self._counters.close_step(step.counters)

    def close(self) -> None:
        """Give up whatever is open; the runtime cannot be used afterwards."""
        self._step = None
        self._exchange.close()

    def _start(self, step: _OpenStep, ordinal: int) -> Ticket:
        self._storage.zero_scratch(ordinal, step.zeroed_runs)
        bundle = self._plan.bundles[ordinal]
        transfer = Transfer(
            step=step.index,
            ordinal=ordinal,
            layer=bundle.layer,
            owner=self._plan.owners[ordinal],
            buffer=self._buffers[ordinal],
            payload=self._payloads.payload(bundle),
        )
        return self._exchange.start(transfer)

    def _finish(self, step: _OpenStep, ticket: Ticket) -> None:
        report = self._exchange.wait(ticket)
        payload, counters = ticket.transfer.payload, step.counters
        counters.broadcasts += 1
        counters.bytes_sent += payload.num_bytes
        counters.useful_bytes += payload.useful_bytes
        counters.exposed_wait_s += report.exposed_s
        counters.hidden_s += max(0.0, report.transfer_s - report.exposed_s)
