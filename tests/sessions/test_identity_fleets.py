"""Synthetic fleets, whose truth is known, are recognised by content alone."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from gateway.exchange import Recognition
from policies.types import TurnKind
from tests.sessions import fleet_scores
from tests.sessions.fleet_scores import FleetScore, Seen, replay, score
from tests.sessions.fleets import Agent, Client, Event, Fleet, Request, fleet, replied, requests, rows

SIZES = {1: 6, 8: 4, 64: 1}
"""Fleets of each row by the number of agents at once: 209 in all."""
LEAST_F1 = 0.98


@pytest.mark.parametrize("row", rows())
def test_sessions_are_found_whatever_the_client_does_to_its_history(row: str) -> None:
    scores = [score(replay(fleet(row, size, seed))) for size, count in SIZES.items() for seed in range(count)]
    total = sum(scores, FleetScore())
    assert total.f1 >= LEAST_F1, total
    assert total.wrong_turns <= total.requests / 1000, total
    assert total.merged_tenants == 0, total
    assert total.wrong_parents == 0, total
    assert total.found_parents >= 0.9 * total.children, total
    assert total.side_turns == 0, total


@pytest.mark.parametrize("row", rows())
def test_a_fleet_is_the_same_from_the_same_seed(row: str) -> None:
    once, again = ([(event.at, event.request.body) for event in requests(fleet(row, 8, 1))] for _ in range(2))
    assert once == again


@pytest.mark.parametrize("seed", range(4))
def test_the_scheduler_is_told_the_same_of_reruns_with_and_without_an_id(seed: int) -> None:
    """So what a rerun costs cannot depend on the header: all else is chance of the measurement."""

    def facts(is_named: bool) -> list[tuple[object, ...]]:
        def events(of: Fleet) -> Iterator[Event]:
            for event in requests(of):
                event.request.headers = {"x-turngate-session": event.request.agent.label} if is_named else {}
                yield event

        with patch.object(fleet_scores, "requests", events):
            seen = [one.recognition for one in replay(fleet("reruns", 12, seed))]
        return [
            (one.kind, one.is_retry, one.turn_index, one.history, bytes(one.blocks), one.chars, one.family_id)
            for one in seen
        ]

    assert facts(is_named=True) == facts(is_named=False)


def test_every_row_is_met_by_two_hundred_fleets_in_all() -> None:
    assert len(rows()) * sum(SIZES.values()) >= 200


@pytest.mark.parametrize(
    ("sessions", "num_wrong"),
    [
        pytest.param("aabbb", 0, id="as it was"),
        pytest.param("aabba", 0, id="the other one went on before the restart"),
        pytest.param("abbab", 0, id="exchanged from the first turn on"),
        pytest.param("aabbc", 0, id="a split is no merge"),
        pytest.param("aaaba", 1, id="two requests at one place are two runs"),
    ],
)
def test_twins_that_a_restart_cuts_short_are_interchangeable(sessions: str, num_wrong: int) -> None:
    """Both have sent the first two turns, one of them the third."""
    sent = [("one", 0), ("one", 1), ("two", 0), ("two", 1), ("two", 2)]
    seen = [_seen(label, turn, session) for (label, turn), session in zip(sent, sessions, strict=True)]
    assert score(seen).wrong_turns == num_wrong


def _seen(label: str, turn: int, session: str) -> Seen:
    request = Request(Agent(label, "content", "task", 3, Client()), f"turn {turn}", {}, replied("done"))
    kind = TurnKind.AGENT
    return Seen(request, Recognition(session, "f", None, turn, kind, "chain", 1.0, False, (), 0), 0)
