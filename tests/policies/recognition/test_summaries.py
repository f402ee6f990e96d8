"""Compacted histories stay with their session, by content alone, or become one of their own; never another's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.recognition import summaries
from policies.recognition.continuation import Call, Rule
from policies.recognition.lineage import Lineage
from policies.recognition.passages import passages
from policies.types import TurnKind
from tests.policies.recognition.compacting import SYSTEM, TOOLS, Agent, Desk


def test_a_compacted_history_is_a_turn_of_the_session_that_it_sums_up() -> None:
    agent = Agent(Desk(), task=f"Explain main.py{', and why it is so' * 100}.")
    first = agent.turn("I look at the files first.")
    agent.turn(f"Now I change main.py{', and everything that uses it' * 30}.")
    agent.compact("# Goal\nmain.py is explained\n\n- nothing needs to change")
    again = agent.turn("I look at the other files.")
    assert (again.session_id, again.rule, again.turn_index) == (first.session_id, Rule.RESTART, 2)
    assert agent.turn("All is done now.").session_id == first.session_id


def test_a_session_compacts_again_and_again_though_every_summary_reads_the_same() -> None:
    agent = Agent(Desk())
    ids = set()
    for _ in range(4):
        ids |= {agent.turn(f"I look at file number {n}.").session_id for n in range(3)}
        agent.compact("Nothing needs to change.")
    assert len(ids) == 1


def test_a_session_that_did_not_fit_into_the_context_goes_on_from_its_summary() -> None:
    agent = Agent(Desk())
    refused = agent.turn(None)
    agent.compact("Nothing has been done yet.")
    assert agent.turn("I look at the files first.").session_id == refused.session_id


@pytest.mark.parametrize("requested", [(0, 1), (1, 0)])
@pytest.mark.parametrize("answered", [(0, 1), (1, 0)])
@pytest.mark.parametrize("restarted", [(0, 1), (1, 0)])
@pytest.mark.parametrize("are_equal", [False, True])
def test_siblings_that_compact_at_once_keep_apart(
    requested: tuple[int, int], answered: tuple[int, int], restarted: tuple[int, int], are_equal: bool
) -> None:
    desk = Desk()
    agents = [Agent(desk), Agent(desk)]
    ids = [agent.turn(f"I begin with file number {n}.").session_id for n, agent in enumerate(agents)]
    summaries = ["We read it all." if are_equal else f"We read file number {n}." for n in range(2)]
    requests = {n: agents[n].ask_for_summary() for n in requested}
    for n in answered:
        desk.end(requests[n], summaries[n])
        agents[n].restart_from(summaries[n])
    again = {n: agents[n].turn("I look at the rest now.").session_id for n in restarted}
    if are_equal:
        assert len({*ids, *again.values()}) == 4, "split when unsure"
    else:
        assert [again[0], again[1]] == ids


def test_siblings_that_said_the_same_last_are_not_told_apart_by_a_transcript() -> None:
    desk = Desk()
    agents = [Agent(desk), Agent(desk)]
    ids = {agent.turn("I look at the files first.").session_id for agent in agents}
    agents[0].compact("We read file number one.")
    assert agents[0].turn("I go on from there.").session_id not in ids


def siblings_in_step(desk: Desk, *num_turns: int) -> tuple[list[Agent], list[str]]:
    """Agents that say the same in each turn, with call ids of their own, and their sessions."""
    agents = [Agent(desk) for _ in num_turns]
    firsts = [agent.turn("I look at part 0 now.").session_id for agent in agents]
    for agent, num in zip(agents, num_turns, strict=True):
        for n in range(1, num):
            agent.turn(f"I look at part {n} now.")
    return agents, firsts


def test_a_sibling_whose_turn_runs_does_not_ask_for_a_summary() -> None:
    (one, other), ids = siblings_in_step(desk := Desk(), 2, 2)
    running = other.send()
    one.compact("Nothing needs to change.")
    desk.end(running, "I look at another part now.")
    assert one.turn("I look at the rest now.").session_id == ids[0]


def test_the_sibling_whose_words_stand_last_asks_for_the_summary_and_goes_on_from_it() -> None:
    (_, ahead), ids = siblings_in_step(Desk(), 2, 3)
    asked = ahead.ask_for_summary()
    assert (asked.kind, asked.session_id) == (TurnKind.SIDE, ids[1])
    ahead.desk.end(asked, "Nothing needs to change.")
    ahead.restart_from("Nothing needs to change.")
    assert ahead.turn("I look at the rest now.").session_id == ids[1]


def test_a_sibling_that_has_asked_for_its_summary_does_not_ask_again() -> None:
    (one, other), ids = siblings_in_step(desk := Desk(), 2, 1)
    running = other.send()
    first = one.ask_for_summary()
    other.keep("I look at part 1 now.", desk.end(running, "I look at part 1 now."))
    second = other.ask_for_summary()
    assert [first.session_id, second.session_id] == ids
    for n, (agent, asked) in enumerate(((other, second), (one, first))):
        desk.end(asked, f"Nothing needs to change in file {n}.")
        agent.restart_from(f"Nothing needs to change in file {n}.")
    assert [agent.turn("I look at the rest now.").session_id for agent in (one, other)] == ids


@pytest.mark.parametrize(
    "changed",
    [
        {"key": b"another tenant"},
        {"key": b"another model"},
        {"system": SYSTEM + b"Today is another day."},
        {"tools": TOOLS * 2},
    ],
)
def test_another_tenant_model_or_agent_never_takes_a_session_over(changed: dict[str, Any]) -> None:
    agent = Agent(Desk())
    first = agent.turn("I look at the files first.")
    agent.compact("Nothing needs to change.")
    assert agent.turn("I look at the rest now.", **changed).session_id != first.session_id


@pytest.mark.parametrize(
    "what", ["failed", "other words", "longer", "first message", "moved on", "runs", "ran before"]
)
def test_any_doubt_about_a_summary_makes_a_session_of_its_own(what: str) -> None:
    desk = Desk()
    agent = Agent(desk)
    first = agent.turn("I look at the files first.")
    before = list(agent.history)
    if what == "ran before":
        agent.send()
    desk.end(agent.ask_for_summary(), None if what == "failed" else "We read it.\nNothing needs to change.")
    agent.restart_from("We read it.\nNothing needs to change.")
    if what == "other words":
        agent.restart_from("We wrote it all.\nNothing needs to change.")
        agent.history[1] = ("assistant", "We wrote it all.\nNothing must be changed.")
    if what == "longer":
        agent.history[1] = ("assistant", "We read it.\nSo we know it by now.")
    if what == "first message":
        agent.history = [("user", agent.prior)]
    if what in ("moved on", "runs"):
        other = Agent(desk, history=before)
        assert (
            other.turn("I go on as before.") if what == "moved on" else other.send()
        ).session_id == first.session_id
    assert agent.turn("I look at the rest now.").session_id != first.session_id


@pytest.mark.parametrize(
    ("task", "said", "is_pointed_to"),
    [
        ("Explain what main.py does", "I look first.\nThen I write.", True),
        ("Explain what util.py does", "I look first.\nThen I write.", False),
        ("Explain what main.py does", "I look first.\nThen I read it again.", False),
    ],
)
def test_a_request_for_a_summary_that_holds_only_a_part_of_a_session_is_not_about_it(
    task: str, said: str, is_pointed_to: bool
) -> None:
    desk = Desk()
    known = Agent(desk).turn("I look first.\nThen I write.")
    unknown = Agent(desk, history=[("user", task), ("assistant", said), ("tool", "a result")])
    unknown.compact("Nothing needs to change.")
    assert (unknown.turn("I look at the rest now.").session_id == known.session_id) is is_pointed_to


def test_what_another_tenant_was_answered_changes_nothing() -> None:
    desk = Desk()
    agent = Agent(desk)
    first = agent.turn("I look at the files first.")
    agent.compact("Nothing needs to change.")
    Agent(desk, call=Call(b"another tenant", TOOLS, SYSTEM, ())).compact("Nothing needs to change.")
    assert agent.turn("I look at the rest now.").session_id == first.session_id


def test_one_summary_carries_one_session_on() -> None:
    desk = Desk()
    agent = Agent(desk)
    first = agent.turn("I look at the files first.")
    agent.compact("Nothing needs to change.")
    copy = Agent(desk, history=list(agent.history))
    assert agent.turn("I look at the rest now.").session_id == first.session_id
    assert copy.turn("I look at the rest now.").session_id != first.session_id


def test_a_history_that_keeps_its_last_messages_behind_the_summary_is_found_by_them() -> None:
    desk = Desk()
    agents = [Agent(desk), Agent(desk)]
    ids = [agent.turn(f"I begin with file number {n}.").session_id for n, agent in enumerate(agents)]
    for n, agent in enumerate(agents):
        agent.turn(f"I go on with file number {n}.")
    for agent in agents:
        kept, agent.history = agent.history[-2:], agent.history[:3]
        desk.end(agent.ask_for_summary(), "The state stays as before.")
        agent.history = [("user", "The state stays as before."), ("assistant", "Got it. Thanks!"), *kept]
    assert [agent.turn("I look at the rest now.").session_id for agent in agents] == ids


def test_what_compacted_siblings_have_in_common_is_not_the_task_of_either() -> None:
    desk = Desk()
    agents = [Agent(desk), Agent(desk)]
    ids = []
    for n, agent in enumerate(agents):
        ids.append(agent.turn(f"I begin with file number {n}.").session_id)
        agent.compact(f"We read file number {n}.")
    agents[0].turn(None)
    agents.reverse()
    assert [agent.turn("I look at the rest now.").session_id for agent in agents] == ids[::-1]


def test_a_forgotten_session_is_not_brought_back() -> None:
    desk = Desk(Lineage(max_sessions=2))
    agent = Agent(desk)
    first = agent.turn("I look at the files first.")
    agent.compact("Nothing needs to change.")
    Agent(desk, task="Another task by now").turn("I do something else.")
    assert agent.turn("I look at the rest now.").session_id != first.session_id


def test_the_ends_of_a_long_history_show_whose_summary_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passages of 8 MB took 170 ms."""
    searched: list[int] = []

    def counted(text: bytes) -> list[int]:
        searched.append(len(text))
        return passages(text)

    monkeypatch.setattr(summaries, "passages", counted)
    agent = Agent(Desk(), task="Explain main.py, and why it is so. " + "It reads a line.\n" * 100_000)
    first = agent.turn("I look at the files first.")
    agent.turn("Now I change main.py. " + "It wrote a line.\n" * 100_000 + "And that is all of it.")
    agent.compact("# Goal\nmain.py is explained\n\n- nothing needs to change")
    again = agent.turn("I look at the other files.")
    assert (again.session_id, again.rule) == (first.session_id, Rule.RESTART)
    assert 0 < max(searched) <= 600_000


def test_passages_stay_equal_in_a_transcript() -> None:
    said = json.dumps('Let me see.\n\tCall "main of util.py" now: ok').encode()
    quoted = json.dumps({"text": f"[Assistant]: {said.decode()}"}).encode()
    assert len(passages(said[1:-1])) == 1
    assert set(passages(said[1:-1])) <= set(passages(quoted))
