"""Counters of one rank, per step and in total."""

from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class StepCounters:
    """What one rank did in one step, or in all steps together.

    broadcasts: layers whose history this rank took part in moving.
    bytes_sent: payload bytes of those broadcasts, counted once each, whatever the number of receivers.
    useful_bytes: the part of them in blocks that hold history.
    exposed_wait_s: seconds compute stood still for a transfer.
    hidden_s: seconds a transfer ran while compute did not wait for it.
    """

    steps: int = 0
    steps_with_history: int = 0
    broadcasts: int = 0
    bytes_sent: int = 0
    useful_bytes: int = 0
    exposed_wait_s: float = 0.0
    hidden_s: float = 0.0

    def add(self, other: "StepCounters") -> None:
        self.steps += other.steps
        self.steps_with_history += other.steps_with_history
        self.broadcasts += other.broadcasts
        self.bytes_sent += other.bytes_sent
        self.useful_bytes += other.useful_bytes
        self.exposed_wait_s += other.exposed_wait_s
        self.hidden_s += other.hidden_s

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(slots=True)
class RankCounters:
    """Counters of the last closed step and the sum over all closed steps."""

    last_step: StepCounters = field(default_factory=StepCounters)
    total: StepCounters = field(default_factory=StepCounters)

    def close_step(self, step: StepCounters) -> None:
        self.last_step = step
        self.total.add(step)
