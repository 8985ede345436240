"""What a checker finds."""

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """The rule that was broken. Numbers are those of the design's invariants."""

    COLLECTIVES_MATCH = "all ranks issue the same collectives in the same order"
    NO_DEADLOCK = "every operation can run"
    NO_RACE = "conflicting accesses are ordered"
    CACHE_AFTER_TRANSFER = "5: no access to a layer's cache before its broadcast completed on this rank"
    SOURCE_HELD_STILL = "6: the owner's buffer is not written while it is the source of a broadcast"
    SLOT_AFTER_LAYER = "6: a scratch slot is not overwritten before the layer that used it has finished"
    NO_NEEDLESS_BROADCAST = "7: no broadcast in a step without history"
    NO_TORN_ACCESS = "nothing changes under an operation that is reading or writing it"
    RIGHT_VALUE = "a layer reads what was last stored"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    message: str

    def __str__(self) -> str:
        return f"[{self.rule.value}] {self.message}"
