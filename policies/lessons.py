"""What a fleet's pools and families have learned, and what its residents take, for the next start of the
gateway; and how a fleet takes that in.

A session that comes back has another id, and its blocks other numbers. It is known by its family and the length of
its last prompt. A mistake among sessions of one length only exchanges their rooms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from policies.fleet import Fleet, Pool
from policies.types import (
    BLOCK_CHARS,
    Family,
    FamilyLessons,
    IdleTimes,
    PoolLessons,
    ResidentLessons,
    Session,
    Turn,
)

MOST_RESIDENTS = 1_024
NO_TEXT, MOST_BLOCKS = 1 << 64, 1 << 16
"""The first id of a block that no text has, and the blocks that one prompt has at most."""
RETRIED_S = 3.0
"""Within which clients come back that the earlier gateway has turned away, or that lost it."""
UNKNOWN_TENANT = ""
"""The tenant of a session of which only the size is known."""


def pool_lessons(fleet: Fleet) -> Iterator[PoolLessons]:
    """Yield the lessons of the pools that have answered."""
    for pool in fleet.pools.values():
        if pool.ratio.sums[1]:
            stated_tokens, capacity_tokens, shown = pool.capacity.lessons
            yield PoolLessons(
                replica_id=pool.replica.id,
                models=pool.replica.models,
                ratio=pool.ratio.sums,
                pace=pool.pace.lessons,
                grain_tokens=pool.grain_tokens,
                kept_answers=pool.kept_answers,
                stated_tokens=stated_tokens,
                capacity_tokens=capacity_tokens,
                shown=shown,
                slots=pool.concurrency.slots,
                residents=tuple(islice(_residents(fleet, pool), MOST_RESIDENTS)),
            )


def _residents(fleet: Fleet, pool: Pool) -> Iterator[ResidentLessons]:
    """Yield the residents that may come back, those that came last first."""
    for session_id in pool.ledger.residents():
        session = fleet.sessions[session_id]
        if not session.is_expired and not session.is_recalled:
            chars = len(session.blocks) * BLOCK_CHARS + pool.reserve.tail_chars_of(session_id)
            own_blocks = pool.ledger.private_blocks(session_id)
            is_running = session.num_running > 0
            yield ResidentLessons(session.family_id, session.num_begun, chars, own_blocks, is_running)


def recall_pool(pool: Pool, lessons: PoolLessons) -> None:
    """Take in the lessons of an earlier gateway, unless the pool has answered here."""
    if pool.ratio.sums[1] or lessons.ratio[1] <= 0:
        return
    pool.ratio.recall(lessons.ratio)
    pool.pace.recall(lessons.pace)
    pool.grain_tokens, pool.kept_answers = lessons.grain_tokens, lessons.kept_answers
    pool.capacity.recall(lessons.stated_tokens, lessons.capacity_tokens, lessons.shown)
    pool.concurrency.slots = lessons.slots


def recall_residents(
    fleet: Fleet, pool: Pool, residents: Iterable[ResidentLessons], now: float
) -> Iterator[tuple[Session, float]]:
    """Hold the room of sessions that an earlier gateway held. Yield each, and when it is expected to be idle:
    twice the usual cycle is for a turn that runs, and for the tool behind it.

    Their blocks are ids that no text has, since those of a text differ in each process.
    """
    for number, resident in enumerate(residents):
        family = fleet.families.get(resident.family_id)
        if family is None:
            continue
        session = Session(f"recalled {pool.replica.id} {number}", family.id, UNKNOWN_TENANT, is_recalled=True)
        session.num_begun, session.prompt_tokens = resident.num_begun, round(resident.chars * pool.ratio.value)
        fleet.sessions[session.id] = session
        fleet.recalled.setdefault(family.id, {})[session.id] = resident.chars
        fleet.count_session(family)
        first = NO_TEXT + number * MOST_BLOCKS
        blocks = range(first, first + min(resident.own_blocks, MOST_BLOCKS))
        fleet.hold(session, blocks, len(blocks) * BLOCK_CHARS, pool)
        yield session, now + RETRIED_S + (2 * pool.pace.cycle_s if resident.is_running else 0.0)


def returned(fleet: Fleet, turn: Turn) -> Session | None:
    """Return the session of an earlier gateway whose place the session of a turn takes: of those of its family
    whose last prompt is as long as the last one in its history, or as this one, which is sent again."""
    there, history = fleet.recalled.get(turn.family_id), turn.history
    if not there or history is None:
        return None
    lengths = history.last_chars, turn.chars
    return next((fleet.sessions[id_] for id_, chars in there.items() if chars in lengths), None)


def family_lessons(fleet: Fleet) -> Iterator[FamilyLessons]:
    """Yield the lessons of the families that have any, the last used one first."""
    for family in reversed(fleet.families.values()):
        if family.num_lessons:
            yield FamilyLessons(
                id=family.id,
                ended=tuple(family.ended),
                continued=tuple(family.continued),
                append_tokens=family.append_tokens,
                private_chars=family.private_chars,
                tokens_per_char=family.tokens_per_char,
                output_tokens=family.output_tokens,
                most_output_tokens=family.most_output_tokens,
                gaps_s=tuple((tools, gaps_s.recent) for tools, gaps_s in family.gaps_s.items()),
                calls_tools=family.calls_tools,
                num_closed=family.num_closed,
                num_reopened=family.num_reopened,
                found_share=family.found_share,
                num_unfound=family.num_unfound,
                num_lessons=family.num_lessons,
            )


def recall_family(fleet: Fleet, lessons: FamilyLessons) -> None:
    """Take in the lessons of an earlier gateway, unless the family is known here."""
    if lessons.id in fleet.families:
        return
    fleet.families[lessons.id] = family = Family(
        lessons.id,
        ended=list(lessons.ended),
        continued=list(lessons.continued),
        append_tokens=lessons.append_tokens,
        private_chars=lessons.private_chars,
        tokens_per_char=lessons.tokens_per_char,
        output_tokens=lessons.output_tokens,
        most_output_tokens=lessons.most_output_tokens,
        gaps_s={tools: IdleTimes(gaps_s) for tools, gaps_s in lessons.gaps_s},
        calls_tools=lessons.calls_tools,
        num_closed=lessons.num_closed,
        num_reopened=lessons.num_reopened,
        found_share=lessons.found_share,
        num_unfound=lessons.num_unfound,
        num_lessons=lessons.num_lessons,
        next_lesson=lessons.num_lessons + 1,
    )
    fleet.weigh(family)
