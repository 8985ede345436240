"""The happens-before checker: every interleaving at once, and the design's invariants by name."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvply.testing.virtual_device.cells import overlaps
from kvply.testing.virtual_device.order import HappensBefore
from kvply.testing.virtual_device.play import Recording
from kvply.testing.virtual_device.rendezvous import Collective, by_position
from kvply.testing.virtual_device.trace import BEFORE_FORWARD, Broadcast, Label, Op, Prepare, Stream, Trace
from kvply.testing.virtual_device.violation import Rule, Violation


def check_order(recording: Recording, collectives: list[Collective]) -> list[Violation]:
    """All violations that hold in some interleaving of the recorded operations.

    The memory of a rank is touched by its own streams only: a broadcast reads its source on the owner between
    start and end of the owner's part, and writes a receiver's buffer within the receiver's part.
    """
    order = HappensBefore(recording.trace, by_position(collectives))
    if order.deadlocks:
        return order.deadlocks
    views = [
        _RankView(recording, order, rank, tuple(_conflicts(recording.trace, rank)))
        for rank in range(recording.scene.num_ranks)
    ]
    checks = (_races, _early_accesses, _moved_sources, _overwritten_slots, _needless_broadcasts)
    return [violation for view in views for check in checks for violation in check(view)]


@dataclass(frozen=True, slots=True)
class _RankView:
    """conflicts: (compute, transfer) operations of the rank that touch common bytes, at least one writing."""

    recording: Recording
    order: HappensBefore
    rank: int
    conflicts: tuple[tuple[Op, Op], ...]


def _races(view: _RankView) -> Iterator[Violation]:
    for access, transfer in view.conflicts:
        if not view.order.before(access, transfer) and not view.order.before(transfer, access):
            yield Violation(Rule.NO_RACE, f"nothing orders {access} and {transfer}")


def _early_accesses(view: _RankView) -> Iterator[Violation]:
    """Invariant 5. Told by labels alone: which bytes a layer touches does not matter."""
    transfers = _by_label(view)
    for access in view.recording.trace.accesses(view.rank, Stream.COMPUTE):
        label = _label(access)
        if label.ordinal == BEFORE_FORWARD or not view.recording.script[label.step].history.needs_broadcast:
            continue
        parts = transfers.get(label, [])
        if isinstance(access.action, Prepare):
            yield from _late_preparations(view.order, access, parts)
            continue
        if not any(isinstance(part.action, Broadcast) for part in parts):
            yield Violation(Rule.CACHE_AFTER_TRANSFER, f"no broadcast was given for {access}")
        for part in parts:
            if not view.order.before(part, access):
                yield Violation(Rule.CACHE_AFTER_TRANSFER, f"{access} may run before {part}")


def _late_preparations(order: HappensBefore, access: Op, parts: list[Op]) -> Iterator[Violation]:
    """What the transfer brings must not be zeroed afterwards."""
    for part in parts:
        if not order.before(access, part):
            yield Violation(Rule.SLOT_AFTER_LAYER, f"{access} may zero what {part} brought")


def _moved_sources(view: _RankView) -> Iterator[Violation]:
    """Invariant 6, owner: writes of earlier layers come before the broadcast, all others after it."""
    owned = tuple((r.offset_bytes, r.end_bytes) for r in view.recording.layouts[view.rank].owned.values())
    for access, transfer in view.conflicts:
        if overlaps(transfer.reads, owned) and not _in_program_order(view.order, access, transfer):
            yield Violation(Rule.SOURCE_HELD_STILL, f"{access} may change the source of {transfer}")


def _overwritten_slots(view: _RankView) -> Iterator[Violation]:
    """Invariant 6, receivers: accesses of earlier layers to a slot come before what overwrites it."""
    slots = tuple((r.offset_bytes, r.end_bytes) for r in view.recording.layouts[view.rank].scratch)
    for access, transfer in view.conflicts:
        earlier = _label(access) < _label(transfer)
        if earlier and overlaps(transfer.writes, slots) and not view.order.before(access, transfer):
            yield Violation(Rule.SLOT_AFTER_LAYER, f"{transfer} may overwrite what {access} still uses")


def _needless_broadcasts(view: _RankView) -> Iterator[Violation]:
    for op in view.recording.trace.collectives(view.rank, Stream.TRANSFER):
        if not view.recording.script[_label(op).step].history.needs_broadcast:
            yield Violation(Rule.NO_NEEDLESS_BROADCAST, f"{op}")


def _conflicts(trace: Trace, rank: int) -> Iterator[tuple[Op, Op]]:
    """Operations of one stream are in order anyway, so only pairs across streams matter."""
    for access in trace.accesses(rank, Stream.COMPUTE):
        for transfer in trace.accesses(rank, Stream.TRANSFER):
            if overlaps(access.writes, transfer.reads + transfer.writes) or overlaps(access.reads, transfer.writes):
                yield access, transfer


def _in_program_order(order: HappensBefore, access: Op, transfer: Op) -> bool:
    """A layer's transfer comes before the layer's own accesses, and after all of earlier layers."""
    if _label(access) < _label(transfer):
        return order.before(access, transfer)
    return order.before(transfer, access)


def _by_label(view: _RankView) -> dict[Label, list[Op]]:
    found: dict[Label, list[Op]] = {}
    for op in view.recording.trace.accesses(view.rank, Stream.TRANSFER):
        found.setdefault(_label(op), []).append(op)
    return found


def _label(op: Op) -> Label:
    assert op.label is not None, f"{op} touches memory for nobody"
    return op.label
