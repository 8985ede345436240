"""A virtual device: proves the order of streams, events and broadcasts without having a device.

The real runtime and the real stream exchange are played on lanes that only write down what they are given.
`check` then looks at the trace of all ranks together, in two ways that do not share code: by happens-before,
which covers every interleaving at once, and by executing random legal orders over memory.

It proves order, not kernels: what a device adds is that its streams, events and collectives do as documented.
"""

from collections.abc import Iterable

from kvply.testing.virtual_device.checker import check_order
from kvply.testing.virtual_device.explorer import Device, Explorer
from kvply.testing.virtual_device.play import Cast, Recording, play
from kvply.testing.virtual_device.rendezvous import match
from kvply.testing.virtual_device.scene import Scene, unequal_scene
from kvply.testing.virtual_device.script import RequestWork, ScriptWriter, StepPlan
from kvply.testing.virtual_device.violation import Rule, Violation
from kvply.testing.virtual_device.workload import RandomWorkload

__all__ = [
    "Cast",
    "Device",
    "RandomWorkload",
    "Recording",
    "RequestWork",
    "Rule",
    "Scene",
    "ScriptWriter",
    "StepPlan",
    "Violation",
    "check",
    "play",
    "unequal_scene",
]


def check(recording: Recording, seeds: Iterable[int] = range(10), device: Device | None = None) -> list[Violation]:
    """Everything both checkers find; `seeds` are the explorer's schedules, by default on a roomy device.

    If ranks do not issue the same collectives, that is all that is reported: nothing after it has a meaning.
    """
    collectives, mismatches = match(recording.trace)
    if mismatches:
        return mismatches
    explorer = Explorer(recording, collectives, device)
    explored = [violation for seed in seeds for violation in explorer.run(seed)]
    return check_order(recording, collectives) + explored
