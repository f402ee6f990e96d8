"""Laws of lessons that are kept over a restart: a fresh Scheduler begins where the last one ended."""

from __future__ import annotations

from dataclasses import replace

from policies.admission import Limits
from policies.forecast import expected_turns, gaps_of, output_tokens
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import (
    BLOCK_CHARS,
    Arrived,
    Dispatch,
    Ending,
    FamiliesRecalled,
    FirstByte,
    History,
    Left,
    PoolLessons,
    Reason,
    ReplicaReported,
    ResidentLessons,
    SessionEnded,
    Tick,
    Turn,
    Usage,
)
from tests.policies.turns_of import turn

REPORT = ReplicaReported("r", frozenset({"m"}), capacity_tokens=10_000, tokens_per_char=0.31)


def taught(num_sessions: int = 4) -> Scheduler:
    """One that saw sessions of three turns, of 0.22 tokens per character."""
    scheduler = Scheduler(Turns(), Limits())
    scheduler.tell(REPORT, 0.0)
    now = 0.0
    for number in range(num_sessions):
        for index in range(3):
            one = turn(f"{number}.{index}", ("rules", 4), (f"s{number}", 2 + index), session=f"s{number}", at=now)
            scheduler.tell(Arrived(one), now)
            scheduler.tell(FirstByte(one.id), now + 0.2 + number / 100)
            usage = Usage(round(0.22 * one.chars), 0, 60 + number)
            scheduler.tell(Left(one.id, Ending.COMPLETE, usage, ("ls",) if index < 2 else ()), now + 1.0)
            now += 1.5 + number / 10
        scheduler.tell(SessionEnded(f"s{number}"), now)
    return scheduler


def restarted(before: Scheduler, report: ReplicaReported = REPORT) -> Scheduler:
    scheduler = Scheduler(Turns(), Limits())
    scheduler.tell(FamiliesRecalled(tuple(before.family_lessons())), 0.0)
    (lessons,) = before.pool_lessons()
    scheduler.tell(replace(report, lessons=lessons), 0.0)
    return scheduler


def test_the_first_estimates_after_a_restart_are_those_that_were_learned() -> None:
    before = taught()
    after = restarted(before)
    assert list(after.pool_lessons()) == list(before.pool_lessons())
    assert list(after.family_lessons()) == list(before.family_lessons())
    old, new = (one._fleet.pools["r"] for one in (before, after))
    assert abs(new.ratio.value - 0.22) < 0.001
    assert new.ratio.value == old.ratio.value
    assert new.pace.decode_s(3) == old.pace.decode_s(3) is not None
    assert new.pace.prefill_s(1_000) == old.pace.prefill_s(1_000)
    assert new.pace.gaps.ordered == old.pace.gaps.ordered
    one, other = (each._fleet.families["f"] for each in (before, after))
    session = before._fleet.sessions["s1"]
    assert output_tokens(other) == output_tokens(one) > 59
    assert [expected_turns(other, n, None) for n in range(5)] == [expected_turns(one, n, None) for n in range(5)]
    assert gaps_of(session, other).ordered == gaps_of(session, one).ordered


def test_both_learn_alike_from_what_follows() -> None:
    before = taught()
    after = restarted(before)
    for scheduler in (before, after):
        one = turn("next", ("next", 6), session="next", at=100.0)
        scheduler.tell(Arrived(one), 100.0)
        scheduler.tell(FirstByte("next"), 100.4)
        scheduler.tell(Left("next", Ending.COMPLETE, Usage(round(0.25 * one.chars), 0, 90), ("ls",)), 102.0)
    (old,), (new,) = list(before.pool_lessons()), list(after.pool_lessons())
    assert new == old
    (old_family,), (new_family,) = list(before.family_lessons()), list(after.family_lessons())
    assert (
        replace(new_family, private_chars=old_family.private_chars) == old_family
    )  # its first prompt is not kept


def test_a_sample_of_the_engine_counts_less_than_lessons() -> None:
    fresh = Scheduler(Turns(), Limits())
    fresh.tell(REPORT, 0.0)
    assert fresh._fleet.pools["r"].ratio.value == 0.31
    assert abs(restarted(taught())._fleet.pools["r"].ratio.value - 0.22) < 0.001


def test_lessons_change_nothing_that_was_learned_here() -> None:
    lessons: PoolLessons = next(taught(num_sessions=2).pool_lessons())
    scheduler = taught()
    before = list(scheduler.pool_lessons()), list(scheduler.family_lessons())
    scheduler.tell(replace(REPORT, lessons=lessons), 99.0)
    scheduler.tell(FamiliesRecalled(tuple(taught(num_sessions=2).family_lessons())), 99.0)
    assert (list(scheduler.pool_lessons()), list(scheduler.family_lessons())) == before


def test_an_engine_that_states_another_size_is_believed() -> None:
    after = restarted(taught(), replace(REPORT, capacity_tokens=20_000))
    assert after._fleet.pools["r"].capacity.tokens == 20_000


def test_what_has_not_answered_leaves_no_lessons() -> None:
    scheduler = Scheduler(Turns(), Limits())
    scheduler.tell(REPORT, 0.0)
    assert list(scheduler.pool_lessons()) == []
    assert list(scheduler.family_lessons()) == []


def in_mid_run(at: float, blocks: int, history_blocks: int, name: str) -> Turn:
    """A turn of a session that comes with a history of two turns."""
    one = turn(name, ("rules", 4), (name, blocks - 4), session=name, at=at)
    return replace(one, history=History(2, 5 * BLOCK_CHARS, history_blocks * BLOCK_CHARS))


def left_with_residents() -> Scheduler:
    """One whose session `r` holds 40 blocks between two turns."""
    before = taught()
    for number, num_blocks in enumerate((20, 40)):
        one = turn(f"r{number}", ("rules", 4), ("r", num_blocks - 4), session="r", at=90.0 + number)
        before.tell(Arrived(one), one.arrived_at)
        before.tell(FirstByte(one.id), one.arrived_at + 0.2)
        before.tell(
            Left(one.id, Ending.COMPLETE, Usage(round(0.22 * one.chars), 0, 60), ("ls",)), one.arrived_at + 0.5
        )
    return before


def test_the_room_of_a_resident_is_kept_until_it_comes_back() -> None:
    after = restarted(left_with_residents())
    pool = after._fleet.pools["r"]
    assert pool.ledger.resident_blocks == 40
    (gone,), _ = after.tell(Arrived(in_mid_run(1.0, 42, 40, "back")), 1.0)
    assert isinstance(gone, Dispatch)
    assert gone.reason is Reason.RESIDENT
    assert not any(session.is_recalled for session in after._fleet.sessions.values())
    assert pool.ledger.resident_blocks == 42


def test_another_session_in_mid_run_does_not_take_its_room() -> None:
    after = restarted(left_with_residents())
    (gone,), _ = after.tell(Arrived(in_mid_run(1.0, 42, 39, "other")), 1.0)
    assert isinstance(gone, Dispatch)
    assert gone.reason is not Reason.RESIDENT
    assert [session.is_recalled for session in after._fleet.sessions.values()].count(True) == 1


def test_the_room_of_a_resident_that_does_not_come_back_is_free_after_its_lease() -> None:
    after = restarted(left_with_residents())
    decisions, wake_at = after.tell(Tick(), 1.0)
    while wake_at is not None and wake_at < 100.0:
        decisions, wake_at = after.tell(Tick(), wake_at)
        assert decisions == []  # no engine is told of a session that it does not know
    assert not after._fleet.sessions
    assert after._fleet.pools["r"].ledger.resident_blocks == 0


def test_lessons_of_residents_hold_sizes_only() -> None:
    (lessons,) = left_with_residents().pool_lessons()
    assert lessons.residents == (ResidentLessons("f", 2, 40 * BLOCK_CHARS, 40, is_running=False),)
