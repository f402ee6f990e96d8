"""The runs that the player sends are those that were drawn: sizes, shared prefixes, and what waits for what."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.fleet.clients import Client
from benchmarks.fleet.player import NOT_DONE, Author, Player
from benchmarks.simulation.fleets import AgentFleet, Population, SubAgents, fixed
from benchmarks.simulation.simulator import World
from benchmarks.simulation.workloads import AgentRun, ModelCall, Text, everyone
from gateway.cli.demo_fleet import ModelClient, SessionRecord
from gateway.transport.aiohttp_upstream import AiohttpUpstream
from tests.deadline import DEADLINE_S

CHARS = 4
BY_CHANCE = 15
"""Characters: two texts may begin with the same words."""
SMALL = Population(
    3,
    fixed(3),
    "agent",
    2,
    200,
    fixed(40),
    fixed(30),
    fixed(10),
    fixed(0),
    sub_agents=SubAgents(1, fixed(2), fixed(2)),
)
FORKS = AgentFleet([SMALL], World())
FAMILIES = AgentFleet([replace(SMALL, sub_agents=SubAgents(1, fixed(2), fixed(2), 60))], World())
CHATS = AgentFleet([SMALL, Population(2, fixed(1), "chat", 1, 20, fixed(10))], World())


class Named(Client):
    def headers(self, run: AgentRun, index: int) -> list[tuple[str, str]]:
        return [("x-call", f"{run.id} {index}")]


@dataclass
class Engine:
    """Answers with as many tokens as it is asked for, and keeps what it saw."""

    refused: frozenset[str] = frozenset()
    overhead_tokens: int = 0
    """Of each message, as a chat template adds them."""
    prompts: dict[str, str] = field(default_factory=dict)
    roles: dict[str, list[str]] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
    """("began" or "ended", call), in their order."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        call, body = request.headers["x-call"], orjson.loads(await request.read())
        self.events.append(("began", call))
        self.prompts[call] = "".join(message["content"] for message in body["messages"])
        self.roles[call] = [message["role"] for message in body["messages"]]
        if call in self.refused:
            return web.Response(status=500)
        text = f"[{call}]".ljust(CHARS * body["max_tokens"], ".")[: CHARS * body["max_tokens"]]
        num_tokens = len(self.prompts[call]) // CHARS + self.overhead_tokens * len(body["messages"])
        usage = {"prompt_tokens": num_tokens, "completion_tokens": body["max_tokens"]}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in ({"choices": [{"delta": {"content": text}}]}, {"choices": [], "usage": usage}):
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        self.events.append(("ended", call))
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", engine.answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def played(
    engine: Engine, runs: list[AgentRun], edition: str = "", within_s: float = DEADLINE_S
) -> dict[str, SessionRecord]:
    upstream = AiohttpUpstream()
    async with served(engine) as base_url:
        player = Player(ModelClient(upstream, base_url, "m"), Author(CHARS, edition), Named())
        try:
            return await player.play(runs, within_s)
        finally:
            await upstream.close()


def calls_of(runs: list[AgentRun]) -> dict[str, ModelCall]:
    return {f"{run.id} {index}": call for run in everyone(runs) for index, call in enumerate(run.calls)}


def common(first: str, second: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


@pytest.mark.parametrize("fleet", [FORKS, FAMILIES, CHATS], ids=["forks", "families", "chats"])
async def test_each_prompt_has_the_tokens_that_were_drawn(fleet: AgentFleet) -> None:
    engine, runs = Engine(), fleet.draw(1)
    records = await played(engine, runs)
    drawn = {name: call.prompt_tokens for name, call in calls_of(runs).items()}
    assert {name: len(prompt) / CHARS for name, prompt in engine.prompts.items()} == drawn
    assert {f"{r.id} {t.index}": t.prompt_tokens for r in records.values() for t in r.turns} == drawn
    assert {record.failure for record in records.values()} == {None}


@pytest.mark.parametrize("fleet", [FORKS, FAMILIES], ids=["forks", "families"])
async def test_tokens_that_the_engine_adds_do_not_pile_up(fleet: AgentFleet) -> None:
    engine, runs = Engine(overhead_tokens=4), fleet.draw(1)
    records = await played(engine, runs)
    for name, call in calls_of(runs).items():
        run_id, _, index = name.partition(" ")
        turn = records[run_id].turns[int(index)]
        assert 0 <= turn.prompt_tokens - call.prompt_tokens <= 4 * 2 + 4, name


@pytest.mark.parametrize("fleet", [FORKS, FAMILIES, CHATS], ids=["forks", "families", "chats"])
async def test_two_prompts_agree_as_far_as_their_texts_do(fleet: AgentFleet) -> None:
    engine, runs = Engine(), fleet.draw(1)
    await played(engine, runs)
    calls = calls_of(runs)
    for (one, first), (other, second) in itertools.combinations(calls.items(), 2):
        agreed = min(first.text.shared(second.text), first.prompt_tokens, second.prompt_tokens)
        by_chance = common(engine.prompts[one], engine.prompts[other]) - CHARS * agreed
        assert 0 <= by_chance <= BY_CHANCE, (one, other)


async def test_system_prompt_is_the_family_s_and_the_rest_is_said_in_turns() -> None:
    engine = Engine()
    await played(engine, FORKS.draw(1))
    assert engine.roles["agent-0 2"] == ["system", "user", "assistant", "user", "assistant", "user"]
    [fork] = {name for name in engine.roles if name.startswith("agent-0/1 ") and name.endswith(" 0")}
    assert engine.roles[fork][-2:] == ["user", "user"]
    await played(engine, FAMILIES.draw(1))
    assert engine.roles["agent-0/1 0"] == ["system", "user"]


@pytest.mark.parametrize("fleet", [FORKS, FAMILIES], ids=["forks", "families"])
async def test_sub_agents_begin_after_the_answer_and_the_next_call_waits_for_them(fleet: AgentFleet) -> None:
    engine, runs = Engine(), fleet.draw(2)
    await played(engine, runs)
    at: dict[Any, int] = {event: place for place, event in enumerate(engine.events)}
    for run in runs:
        [place] = [place for place, call in enumerate(run.calls) if call.children]
        for child in run.calls[place].children:
            assert at["ended", f"{run.id} {place}"] < at["began", f"{child.id} 0"]
            assert at["ended", f"{child.id} {len(child.calls) - 1}"] < at["began", f"{run.id} {place + 1}"]


async def test_text_that_was_compacted_begins_again() -> None:
    before, after = Text((50, "family"), (200, "a")), Text((50, "family"), (120, "b"))
    engine = Engine()
    await played(engine, [AgentRun("s", "family", 0.0, (ModelCall(before, 150, 20), ModelCall(after, 100, 20)))])
    assert engine.roles["s 1"] == ["system", "user"]
    assert len(engine.prompts["s 1"]) == 100 * CHARS


async def test_another_edition_has_the_families_and_none_of_the_sessions() -> None:
    engine, again, runs = Engine(), Engine(), CHATS.draw(1)
    await played(engine, runs)
    await played(again, runs, "earlier ")
    for name, call in calls_of(runs).items():
        agreed = common(engine.prompts[name], again.prompts[name])
        assert 0 <= agreed - CHARS * call.text.parts[0][0] <= BY_CHANCE


async def test_session_that_fails_says_why_and_its_parent_goes_on() -> None:
    engine, runs = Engine(frozenset({"agent-0/0 0"})), FORKS.draw(1)
    records = await played(engine, runs)
    assert {record.id for record in records.values() if record.failure is not None} == {"agent-0/0"}
    assert "500" in str(records["agent-0/0"].failure)


async def test_session_that_does_not_end_in_time_says_so() -> None:
    [run] = replace(FORKS, populations=[replace(SMALL, num_sessions=1, begins_at=1e6)]).draw(1)
    records = await played(Engine(), [run], within_s=0.01)
    assert {record.failure for record in records.values()} == {NOT_DONE}
