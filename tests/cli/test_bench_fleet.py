"""Laws of the fleet of a bench: it outgrows the pool within the time, or it is that of a log of facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.cli.bench_fleet import BenchFleet, EngineSpeed, fleet_of_facts, fleet_of_pool
from gateway.telemetry.factlog import Header
from policies.types import Arrived, Decision, Ending, Fact, Left, TurnKind, Usage
from tests.policies.turns_of import turn

FAST = EngineSpeed(4.0, prefill_token_s=1e-6, decode_token_s=0.01)
Line = Header | tuple[float, Fact, list[Decision]]


def of_pool(pool_tokens: int, **more: Any) -> BenchFleet:
    terms: dict[str, Any] = {"context_tokens": None, "speed": FAST, "num_agents": None, "sought_run_s": 60.0}
    return fleet_of_pool(pool_tokens, **{"most_run_s": 180.0} | terms | more)


@pytest.mark.parametrize("pool_tokens", [8_000, 40_000, 500_000, 3_000_000])
def test_the_fleet_grows_to_twice_the_pool_whatever_its_size(pool_tokens: int) -> None:
    fleet = of_pool(pool_tokens)
    assert 38 <= len(fleet.sessions) <= 52
    assert fleet.peak_tokens / pool_tokens == pytest.approx(2.1, rel=0.05)


def test_contexts_that_the_engine_does_not_take_become_more_agents() -> None:
    fleet = of_pool(500_000, context_tokens=8_192)
    assert len(fleet.sessions) > 52
    assert fleet.peak_tokens / 500_000 == pytest.approx(2.1, rel=0.05)
    assert max(one.turns[-1].prompt_tokens + one.turns[-1].output_tokens for one in fleet.sessions) <= 8_192


def test_asked_for_fewer_agents_they_keep_their_size() -> None:
    few, usual = of_pool(40_000, num_agents=15), of_pool(40_000)
    assert len(few.sessions) == 15
    assert few.sessions[0].turns[0].prompt_tokens == usual.sessions[0].turns[0].prompt_tokens
    assert few.peak_tokens < 40_000


def test_a_slow_engine_gets_fewer_turns_of_the_same_contexts_and_then_a_reason() -> None:
    slow = replace(FAST, prefill_token_s=2e-4)
    usual, short = of_pool(40_000, speed=slow), of_pool(40_000, speed=slow, sought_run_s=35.0)
    assert (usual.num_turns, short.num_turns) == (4 * len(usual.sessions), 2 * len(short.sessions))
    assert short.peak_tokens == pytest.approx(usual.peak_tokens, rel=0.15)
    with pytest.raises(RuntimeError, match="5,000 tokens of prompts per second and its pool has 40,000"):
        of_pool(40_000, speed=slow, sought_run_s=3.0, most_run_s=10.0)


def test_runs_share_no_text_and_repeats_of_all_arms_the_same_sizes() -> None:
    fleet = of_pool(40_000)
    one, other, later = fleet.of(0, "a"), fleet.of(0, "b"), fleet.of(1, "c")
    assert [session.turns for session in one] == [session.turns for session in other]
    assert [session.turns for session in one] != [session.turns for session in later]
    names = [{session.family_id for session in run} | {session.id for session in run} for run in (one, other)]
    assert names[0].isdisjoint(names[1])


# ---- of a log


def answered(
    id_: str, session: str, at: float, until: float, tokens: int, output: int = 10, **more: Any
) -> list[Line]:
    blocks = (1, 2, hash(session) % 1000 + 10)
    asked = replace(turn(id_, session=session, at=at), blocks=blocks, chars=4 * tokens, **more)
    return [(at, Arrived(asked), []), (until, Left(id_, Ending.COMPLETE, Usage(tokens, 0, output)), [])]


def test_a_log_gives_arrivals_sizes_answers_and_pauses() -> None:
    log: list[Line] = [
        Header({}),
        *answered("old", "before-the-last-start", 1.0, 2.0, 900),
        Header({}),
        *answered("a1", "a", 100.0, 101.0, 1000, 50),
        *answered("b1", "b", 100.5, 102.0, 1200),
        *answered("a2", "a", 103.5, 104.0, 1300),
        *answered("t", "a", 103.6, 104.0, 1300, kind=TurnKind.SIDE),
        (104.0, Arrived(turn("x", session="c", at=104.0)), []),
        (105.0, Left("x", Ending.CANCELLED), []),
    ]
    fleet = fleet_of_facts(log, 60.0)
    first, second = fleet.sessions
    assert (first.id, first.arrives_at, second.arrives_at) == ("a", 0.0, 0.5)
    assert [(one.prompt_tokens, one.output_tokens) for one in first.turns] == [(1000, 50), (1300, 10)]
    assert first.turns[0].gap_s == pytest.approx(2.5)
    assert first.shared_tokens == 2 * 512 // 4
    assert fleet.of(3, "x")[0].turns == first.turns


def test_of_a_long_log_its_busiest_stretch_is_played() -> None:
    log: list[Line] = [Header({})]
    for number, at in enumerate((0.0, 500.0, 501.0, 502.0, 900.0)):
        log += answered(f"t{number}", f"s{number}", at, at + 1.0, 1000)
    fleet = fleet_of_facts(log, 60.0)
    assert [session.arrives_at for session in fleet.sessions] == [0.0, 1.0, 2.0]


def test_a_log_without_answers_is_refused() -> None:
    with pytest.raises(ValueError, match="no answered turn"):
        fleet_of_facts([Header({})], 60.0)
