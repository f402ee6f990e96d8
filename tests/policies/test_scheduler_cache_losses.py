"""Laws of what the Scheduler makes of an engine's own account of its cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.admission import Limits
from policies.ledger import Ledger
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Arrived, CacheLost, Dispatch, ReplicaReported, Turn
from tests.policies.turns_of import TOKENS_PER_BLOCK, TOKENS_PER_CHAR, chain, done, turn

OWN, SHARED = ("own", 6), ("shared", 4)


def started(num_replicas: int = 1) -> Scheduler:
    scheduler = Scheduler(Turns(), Limits())
    for number in range(num_replicas):
        capacity_tokens = 1_000 * TOKENS_PER_BLOCK
        scheduler.tell(ReplicaReported(f"r{number}", None, capacity_tokens, 8, 0, TOKENS_PER_CHAR), 0.0)
    return scheduler


def dispatched(scheduler: Scheduler, arriving: Turn) -> Dispatch:
    [decision] = scheduler.tell(Arrived(arriving), arriving.arrived_at)[0]
    assert isinstance(decision, Dispatch)
    return decision


def finished_first_turn(scheduler: Scheduler, session: str = "s", own: tuple[str, int] = OWN) -> Dispatch:
    first = dispatched(scheduler, turn(f"{session}1", SHARED, own, session=session))
    scheduler.tell(done(f"{session}1", 10 * TOKENS_PER_BLOCK), 1.0)
    return first


def test_what_an_engine_evicted_is_not_expected_in_its_cache() -> None:
    scheduler = started()
    finished_first_turn(scheduler)
    scheduler.tell(CacheLost("r0", {"s": 7 * TOKENS_PER_BLOCK}), 2.0)
    again = dispatched(scheduler, turn("s2", SHARED, OWN, session="s", at=3.0))
    assert again.expected_cached_tokens == 7 * TOKENS_PER_BLOCK


def test_the_engine_s_own_counts_come_before_those_by_characters() -> None:
    """The prompt has half as many tokens per character as its model's others."""
    scheduler = started()
    dispatched(scheduler, turn("s1", SHARED, OWN, session="s"))
    scheduler.tell(done("s1", 5 * TOKENS_PER_BLOCK), 1.0)
    more = turn("s2", SHARED, OWN, ("more", 2), session="s", at=2.0)
    assert dispatched(scheduler, more).expected_cached_tokens == 5 * TOKENS_PER_BLOCK
    scheduler.tell(done("s2", 6 * TOKENS_PER_BLOCK), 3.0)
    scheduler.tell(CacheLost("r0", {"s": 333}), 4.0)
    again = dispatched(scheduler, turn("s3", SHARED, OWN, ("more", 4), session="s", at=5.0))
    assert again.expected_cached_tokens == 333


def test_a_loss_that_is_told_while_the_first_prompt_is_computed_is_none() -> None:
    """The engine names a session when it stores the first part of it."""
    scheduler = started()
    dispatched(scheduler, turn("s1", SHARED, OWN, session="s"))
    scheduler.tell(CacheLost("r0", {"s": 2 * TOKENS_PER_BLOCK}), 0.5)
    scheduler.tell(done("s1", 10 * TOKENS_PER_BLOCK), 1.0)
    again = dispatched(scheduler, turn("s2", SHARED, OWN, session="s", at=3.0))
    assert again.expected_cached_tokens == 10 * TOKENS_PER_BLOCK


def test_what_a_sibling_still_has_is_expected() -> None:
    scheduler = started()
    finished_first_turn(scheduler)
    finished_first_turn(scheduler, "t", ("other", 6))
    scheduler.tell(CacheLost("r0", {"s": 0}), 2.0)
    again = dispatched(scheduler, turn("s2", SHARED, OWN, session="s", at=3.0))
    assert again.expected_cached_tokens == 4 * TOKENS_PER_BLOCK


def test_what_was_computed_again_is_expected_again() -> None:
    scheduler = started()
    finished_first_turn(scheduler)
    for kept_blocks in (0, 5, 10):
        scheduler.tell(CacheLost("r0", {"s": kept_blocks * TOKENS_PER_BLOCK}), 2.0)
    again = dispatched(scheduler, turn("s2", SHARED, OWN, session="s", at=3.0))
    assert again.expected_cached_tokens == 10 * TOKENS_PER_BLOCK


def test_a_cleared_cache_leaves_nobody_resident() -> None:
    scheduler = started()
    finished_first_turn(scheduler)
    scheduler.tell(CacheLost("r0", None), 2.0)
    assert scheduler.view().replicas[0].residency_tokens == 0
    again = dispatched(scheduler, turn("s2", SHARED, OWN, session="s", at=3.0))
    assert again.expected_cached_tokens == 0


def test_losses_of_sessions_that_are_not_known_or_live_elsewhere_change_nothing() -> None:
    scheduler = started(num_replicas=2)
    home = finished_first_turn(scheduler).replica_id
    other = "r1" if home == "r0" else "r0"
    scheduler.tell(CacheLost(other, {"s": 0, "stranger": 0}), 2.0)
    again = dispatched(scheduler, turn("s2", SHARED, OWN, session="s", at=3.0))
    assert (again.replica_id, again.expected_cached_tokens) == (home, 10 * TOKENS_PER_BLOCK)


steps = st.tuples(st.sampled_from("hrcfe"), st.sampled_from("abc"), st.integers(0, 8), st.sampled_from("xy"))


@given(st.lists(steps, max_size=40))
def test_a_ledger_with_losses_equals_sets_counted_from_scratch(
    steps_taken: list[tuple[str, str, int, str]],
) -> None:
    ledger = Ledger()
    chains: dict[str, tuple[int, ...]] = {}
    kept: dict[str, int] = {}
    for step, session, number, tail in steps_taken:
        if step == "h":
            chains[session] = chain(("shared", 3), (tail, number))
            ledger.hold(session, chains[session])
            kept[session] = len(chains[session])
        elif step == "c":
            ledger.cut(session, number)
            kept[session] = min(number, len(chains.get(session, ())))
        elif step == "f":
            ledger.forget(session)
            chains.pop(session, None)
        elif step == "r" and ledger.is_resident(session):
            ledger.release(session)
        present = {block for name, blocks in chains.items() for block in blocks[: kept[name]]}
        for blocks in chains.values():
            assert ledger.expected_blocks(blocks) == sum(block in present for block in blocks)
