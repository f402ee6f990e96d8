"""What turns wait for at the gate, behind which sessions, and for how long by the estimate: noted on arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from policies.fleet import Fleet, Pool
from policies.types import SessionId, Turn, TurnId, WaitCause, Waited

MOST_BEHIND = 3
"""Sessions that a note names."""


@dataclass(slots=True)
class _Note:
    since: float
    is_share: bool
    behind: tuple[tuple[SessionId, str], ...]
    num_before: int
    estimate_s: float


class Waits:
    """The notes of the turns at the gate. Turns that go at once have none. Owned by the Scheduler."""

    def __init__(self) -> None:
        self._notes: dict[TurnId, _Note] = {}

    def note(
        self,
        turn: Turn,
        holders: Iterable[tuple[SessionId, str]],
        is_share: bool,
        num_before: int,
        estimate_s: float,
        now: float,
    ) -> None:
        """Note a turn that begins to wait. `holders`: the sessions that hold the room or the slots, with their
        tenants; `is_share`: other tenants go first."""
        others = (holder for holder in holders if holder[0] != turn.session_id)
        behind = tuple(dict.fromkeys(islice(others, MOST_BEHIND)))
        self._notes[turn.id] = _Note(now, is_share, behind, num_before, estimate_s)

    def forget(self, turn_id: TurnId) -> None:
        self._notes.pop(turn_id, None)

    def ended(self, turn_id: TurnId, not_before: float, ready_at: float, now: float) -> Waited | None:
        """Return the wait of a turn that goes now, and had its room at `ready_at`. None: it went at once.
        `not_before`: until when it had to rest."""
        note = self._notes.pop(turn_id, None) if self._notes else None
        if note is None:
            return None
        rested_s = max(0.0, min(not_before, ready_at) - note.since)
        room_s, slot_s = max(0.0, ready_at - note.since - rested_s), now - ready_at
        return _waited(note, room_s, slot_s, rested_s)


def _waited(note: _Note, room_s: float, slot_s: float, replica_s: float) -> Waited:
    parts = (room_s, WaitCause.ROOM), (slot_s, WaitCause.SLOT), (replica_s, WaitCause.REPLICA)
    cause = WaitCause.SHARE if note.is_share else max(parts, key=lambda part: part[0])[1]
    return Waited(cause, room_s, slot_s, replica_s, note.behind, note.num_before, note.estimate_s)


def residents(pool: Pool, running: Iterable[tuple[SessionId, str]]) -> Iterator[tuple[SessionId, str]]:
    """Return sessions that hold the room of a pool: those with a slot, then the idle ones, longest first."""
    yield from running
    for session in pool.idle.values():
        yield session.id, session.tenant


def holds_most(fleet: Fleet, turn: Turn, pools: Iterable[Pool]) -> bool:
    """Whether the turn's tenant holds more of each pool than any other tenant, by their weights."""
    if not fleet.tenants.are_rivals:
        return False
    for pool in pools:
        own = fleet.blocks_of(turn.tenant, pool)
        others = [fleet.blocks_of(tenant, pool) for tenant in pool.parts if tenant != turn.tenant]
        if not own or not others or own <= max(others):
            return False
    return True
