"""What a fleet's pools and families have learned, for the next start of the gateway; and how a fleet takes that
in."""

from __future__ import annotations

from collections.abc import Iterator

from policies.fleet import Fleet, Pool
from policies.types import Family, FamilyLessons, IdleTimes, PoolLessons


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
            )


def recall_pool(pool: Pool, lessons: PoolLessons) -> None:
    """Take in the lessons of an earlier gateway, unless the pool has answered here."""
    if pool.ratio.sums[1] or lessons.ratio[1] <= 0:
        return
    pool.ratio.recall(lessons.ratio)
    pool.pace.recall(lessons.pace)
    pool.grain_tokens, pool.kept_answers = lessons.grain_tokens, lessons.kept_answers
    pool.capacity.recall(lessons.stated_tokens, lessons.capacity_tokens, lessons.shown)
    pool.concurrency.slots = lessons.slots


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
