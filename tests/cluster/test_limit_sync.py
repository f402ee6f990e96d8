"""The law of ceilings: however members spend and talk, together they never spend more than the limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.access.limits import Meter, Quantity
from gateway.cluster.limit_sync import LimitClaim, SharedCounters, free_of

LIMIT, WINDOW_S, NOW = 100, 60.0, 6_000.0
METER = Meter("k", Quantity.REQUESTS, LIMIT, WINDOW_S)
Steps = st.lists(st.tuples(st.sampled_from(["spend", "talk"]), st.integers(0, 2)), max_size=400)


def spend(counters: SharedCounters) -> bool:
    """One request, if the counters allow it."""
    if counters.used("k", WINDOW_S, NOW).total + 1 > LIMIT:
        return False
    counters.count("k", WINDOW_S, 1, NOW)
    return True


def talk(member: SharedCounters, others: list[SharedCounters]) -> None:
    """One round of one member."""
    member.num_members = len(others) + 1
    member.learn(name for other in others for name, _ in other.windows(NOW))
    claims = {str(n): {w: other.claim(w) for w in other.windows(NOW)} for n, other in enumerate(others)}
    member.hear_claims(claims, NOW)


@given(Steps)
def test_members_never_spend_more_than_the_limit(steps: list[tuple[str, int]]) -> None:
    members = [SharedCounters(lambda: [METER]) for _ in range(3)]
    for member in members:
        member.num_members = 3
    spent = 0
    for step, n in steps:
        if step == "spend":
            spent += sum(spend(members[n]) for _ in range(7))
        else:
            talk(members[n], members[:n] + members[n + 1 :])
    assert spent <= LIMIT


def test_the_rest_of_a_limit_can_be_spent_by_the_one_member_that_wants_it() -> None:
    members = [SharedCounters(lambda: [METER]) for _ in range(3)]
    for member in members:
        member.num_members = 3
    spent = 0
    for _ in range(60):
        while spend(members[0]):
            spent += 1
        for n, member in enumerate(members):
            talk(member, members[:n] + members[n + 1 :])
    assert spent >= 0.98 * LIMIT


def test_a_lost_member_claims_only_what_it_used() -> None:
    assert free_of(100, 0, 10, {"gone": LimitClaim(20, 20)}, 1) == 70


def test_alone_a_member_has_the_whole_limit() -> None:
    alone = SharedCounters(lambda: [METER])
    assert sum(spend(alone) for _ in range(LIMIT + 10)) == LIMIT


PLACES = 4


@example([1, 1, 1, 1, 0, 2])
@given(st.lists(st.integers(0, 5), max_size=60))
def test_no_more_places_are_confirmed_than_there_are_however_late_members_hear_of_each_other(
    order: list[int],
) -> None:
    """A request comes at one of three members, or one member's question reaches another one."""
    members = [SharedCounters(lambda: [METER]) for _ in range(3)]
    questions: list[asyncio.Future[None]] = []
    confirmed: list[bool] = []

    def asking(own: SharedCounters) -> Callable[[str, int], Awaitable[int]]:
        async def ask(name: str, at_ns: int) -> int:
            async def of(other: SharedCounters) -> int:
                questions.append(reached := asyncio.get_running_loop().create_future())
                await reached
                return other.num_earlier(name, at_ns)

            return sum(await asyncio.gather(*(of(other) for other in members if other is not own)))

        return ask

    async def enter(member: SharedCounters) -> None:
        if not member.is_full("k", PLACES):
            member.hold("k", 1)
            confirmed.append(await member.confirm_hold("k", PLACES))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for step in [*order, *(3 for _ in range(200))]:
                if step < len(members):
                    group.create_task(enter(members[step]))
                elif questions:
                    questions.pop(step % len(questions)).set_result(None)
                for _ in range(4):
                    await asyncio.sleep(0)

    for member in members:
        member.num_members, member.ask_earlier = len(members), asking(member)
    asyncio.run(main())
    assert sum(confirmed) <= PLACES
    assert sum(len(member._held.get("k", ())) for member in members) == sum(confirmed)
