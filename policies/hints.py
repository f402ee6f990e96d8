"""What an engine is told about a turn; engine files own polarity, range and field names."""

from __future__ import annotations

from policies.forecast import expected_turns
from policies.types import Family, Hints, Session, Turn, TurnKind


def hints(turn: Turn, session: Session, family: Family, is_shared: bool) -> Hints:
    """Urgency, 100 first: an agent turn with nothing to follow is at 80, with one turn to follow at 40, and so on;
    side requests are at 0; each class of the operator moves it by 10, so batches are below 0.

    `is_shared`: other tenants use the engine, too. Its queue knows no tenants, so all turns of a class have the
    least urgency of it: none overtakes what was sent before, whatever its client declares, whatever was learned.
    """
    remaining = expected_turns(family, session.num_begun, session.remaining_turns)
    own = 0.0 if is_shared or turn.kind is TurnKind.SIDE else 80.0 / (1.0 + remaining)
    return Hints(
        urgency=round(min(100.0, max(-100.0, own + 10 * turn.urgency))),
        remaining_turns=None if is_shared else remaining,
        expected_output_tokens=None if family.output_tokens is None else round(family.output_tokens),
        prefills_next=bool(session.prefills_next),
        session_id=session.id,
        parent_id=session.parent_id,
    )
