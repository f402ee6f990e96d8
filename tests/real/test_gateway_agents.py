"""Unmodified agents through the gateway, in front of real engines: whom it recognises, and what it repairs.

agents -> shim that keeps what they sent (and may hide who they are) -> gateway -> shim that scripts -> engine
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.real.agents import AgentRun, openai_environment, opencode_config, run_codex, run_opencode
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import Gateway, Json, engine_url, gateway
from tests.real.rewrites import anonymous, at_most_tokens, replayed, scripted
from tests.real.scripts import Call, Shell, Step, answer_to, for_agents, spawned_agent_id, steps
from tests.real.shim import Exchange, Rewrite, Shim, shim
from tests.real.vllm import Vllm

NUM_AGENTS = 8
PATIENCE_S = 30
"""Eight agents that start at once leave an engine on the same two cores no time to answer a poll."""
MOCKER_TOKENS = 500
"""Dynamo's mocker generates nothing without a limit, and Responses clients give none."""
TASK = "Explain main.py"
TITLE = "Explaining main.py"
VERDICT = "It adds two numbers."
READ_FILE = Call("read", {"filePath": "main.py"})
LIST_FILES = Call("bash", {"command": "ls", "description": "Lists files"})
OPENCODE_STEPS: tuple[Step, ...] = (LIST_FILES, READ_FILE, VERDICT)
CODEX_STEPS: tuple[Step, ...] = (
    Call("exec_command", {"cmd": "ls"}),
    Call("exec_command", {"cmd": "cat main.py"}),
    VERDICT,
)
PATCH = Call(
    "apply_patch",
    {
        "input": "*** Begin Patch\n*** Update File: main.py\n@@\n"
        "-    return a + b\n+    return b + a\n*** End Patch\n"
    },
)
SPAWN = Call("spawn_agent", {"message": "Read main.py"}, namespace="multi_agent_v1")


@dataclass(frozen=True)
class Line:
    """From the agents to an engine."""

    outside: Shim
    """What the agents sent and received; its `base_url` is theirs."""
    gateway: Gateway
    inside: Shim
    """What the engine was sent."""

    def agent_turns(self) -> list[Exchange]:
        """What the agents sent with tools: the truth that the gateway is compared with."""
        return [e for e in self.outside.to("/v1/") if body_of(e).get("tools")]

    async def agent_sessions(self) -> list[Json]:
        return [row for row in await self.gateway.sessions() if row["kind"] == "agent"]


@asynccontextmanager
async def line(
    kind: str, engine: str, *to_engine: Rewrite, from_agents: Sequence[Rewrite] = ()
) -> AsyncIterator[Line]:
    async with (
        shim(engine, *to_engine) as inside,
        gateway(engine_url(kind, inside.base_url), probing__timeout_s=PATIENCE_S) as running,
        shim(running.base_url, *from_agents) as outside,
    ):
        yield Line(outside, running, inside)


def body_of(exchange: Exchange) -> Json:
    body: Json = json.loads(exchange.received.body or b"{}")
    return body


def header(exchange: Exchange, name: str) -> str | None:
    headers = {name.lower(): value for name, value in exchange.received.headers}
    return headers.get(name)


def told(exchange: Exchange, name: str) -> str:
    """A header of the gateway's answer."""
    return {name.lower(): value for name, value in exchange.response_headers}[name]


def assert_done(run: AgentRun) -> None:
    assert run.exit_code == 0, run.stderr
    assert VERDICT in run.stdout


async def assert_all_answered(line: Line) -> None:
    await line.gateway.until_idle()
    failed: list[object] = [(e.status, e.response_body) for e in line.outside.exchanges if e.status != 200]
    failed += [receipt for receipt in line.gateway.receipts() if receipt["outcome"] != "answered"]
    assert not failed, failed


async def eight_opencodes(line: Line, model: str) -> None:
    """Each in its own directory, all at once."""
    env = opencode_config(line.outside.base_url, model)
    runs = await asyncio.gather(*(run_opencode(TASK, env) for _ in range(NUM_AGENTS)))
    for run in runs:
        assert_done(run)
    assert len({run.workspace for run in runs}) == NUM_AGENTS
    await assert_all_answered(line)


async def assert_eight_sessions_of_one_family(line: Line) -> None:
    """By what the agents called themselves, whether or not the gateway could see it: no session is missing, split
    or merged with another."""
    sessions = await line.agent_sessions()
    num_turns = Counter((header(e, "x-session-id"), told(e, "x-turngate-session")) for e in line.agent_turns())
    by_client, by_gateway = zip(*num_turns, strict=True)
    assert len(set(by_client)) == len(set(by_gateway)) == len(num_turns) == NUM_AGENTS
    assert set(num_turns.values()) == {len(OPENCODE_STEPS)}
    assert {row["session"] for row in sessions} == set(by_gateway)
    assert {row["turns"] for row in sessions} == {len(OPENCODE_STEPS)}
    assert len({row["family"] for row in sessions}) == 1
    assert {row["state"] for row in sessions} == {"idle"}
    family = {row["family"]: row for row in await line.gateway.families()}[sessions[0]["family"]]
    assert family["sessions"]["agent"] == NUM_AGENTS
    assert family["turns"] == NUM_AGENTS * len(OPENCODE_STEPS)


def title_receipts(line: Line) -> list[Json]:
    titles = {told(e, "x-turngate-receipt") for e in line.outside.to("/v1/") if not body_of(e).get("tools")}
    return [receipt for receipt in line.gateway.receipts() if receipt["id"] in titles]


async def test_eight_opencodes_are_eight_sessions_of_one_family(vllm: Vllm) -> None:
    async with line("vllm", vllm.base_url, scripted(steps(*OPENCODE_STEPS, title=TITLE))) as running:
        await eight_opencodes(running, vllm.model)
        await assert_eight_sessions_of_one_family(running)
        sessions = await running.gateway.sessions()
        assert len(sessions) == NUM_AGENTS
        assert {(row["source"], row["side_requests"]) for row in sessions} == {("x-session-id", 1)}
        assert Counter(receipt["kind"] for receipt in title_receipts(running)) == {"side": NUM_AGENTS}
        num_turns = NUM_AGENTS * len(OPENCODE_STEPS)
        assert await running.gateway.metric("turngate_turns_total", kind="agent") == num_turns
        assert await running.gateway.metric("turngate_turns_total", kind="side") == NUM_AGENTS
        assert await running.gateway.metric("turngate_slots_used") == 0


async def test_eight_opencodes_that_hide_who_they_are_are_the_same_eight_sessions(vllm: Vllm) -> None:
    script = scripted(steps(*OPENCODE_STEPS, title=TITLE))
    async with line("vllm", vllm.base_url, script, from_agents=[anonymous()]) as running:
        await eight_opencodes(running, vllm.model)
        await assert_eight_sessions_of_one_family(running)
        assert {row["source"] for row in await running.agent_sessions()} == {"chain"}
        titles = title_receipts(running)
        assert len(titles) == NUM_AGENTS
        assert {receipt["kind"] for receipt in titles} <= {"side", "single"}
        num_turns = NUM_AGENTS * len(OPENCODE_STEPS)
        assert await running.gateway.metric("turngate_turns_total", kind="agent") == num_turns


async def test_a_sub_agent_of_opencode_is_linked_to_its_parent(vllm: Vllm) -> None:
    task = Call("task", {"description": "Look", "prompt": "Read main.py", "subagent_type": "explore"})
    script = for_agents(steps(task, VERDICT), steps(READ_FILE, "It has one function."), spawning_tool="task")
    async with line("vllm", vllm.base_url, scripted(script)) as running:
        assert_done(await run_opencode(TASK, opencode_config(running.outside.base_url, vllm.model)))
        await assert_all_answered(running)
        await assert_one_child(running, "x-parent-session-id")


async def assert_one_child(line: Line, parent_header: str) -> None:
    """Two agent sessions of two turns or more, of which one names the other as its parent, as the client did."""
    children = {told(e, "x-turngate-session") for e in line.agent_turns() if header(e, parent_header)}
    parents = {told(e, "x-turngate-session") for e in line.agent_turns() if not header(e, parent_header)}
    sessions = {row["session"]: row for row in await line.agent_sessions()}
    assert sessions.keys() == children | parents
    (child,), (parent,) = children, parents
    assert sessions[child]["parent"] == parent
    assert "parent" not in sessions[parent]
    assert sessions[child]["turns"] == 2
    assert sessions[parent]["turns"] >= 2


async def test_opencode_with_only_the_two_openai_variables(vllm: Vllm) -> None:
    """It speaks Responses, asks for models that nobody serves, and leaves out a `type` that vLLM wants."""
    async with line("vllm", vllm.base_url, scripted(steps(*OPENCODE_STEPS, title=TITLE))) as running:
        env = openai_environment(running.outside.base_url)
        assert_done(await run_opencode(TASK, env, arguments=["-m", "openai/gpt-5"]))
        await assert_all_answered(running)
        (session,) = await running.gateway.sessions()
        assert (session["turns"], session["side_requests"]) == (len(OPENCODE_STEPS), 1)
        asked = Counter(receipt["model"] for receipt in running.gateway.receipts())
        assert asked == {"gpt-5": len(OPENCODE_STEPS), "gpt-5.4-nano": 1}
        assert {body_of(e)["model"] for e in running.inside.to("/v1/responses")} == {vllm.model}
        first, *later = (r for r in running.gateway.receipts() if r["kind"] == "agent")
        assert not any("type" in note for note in first.get("notes", ()))
        assert all(any("type" in note for note in receipt["notes"]) for receipt in later)


async def test_codex_by_its_own_flags(vllm: Vllm) -> None:
    async with line("vllm", vllm.base_url, scripted(steps(*CODEX_STEPS))) as running:
        assert_done(await run_codex(TASK, running.outside.base_url, model="lab-model"))
        await assert_all_answered(running)
        (session,) = await running.gateway.sessions()
        assert (session["turns"], session["source"]) == (len(CODEX_STEPS), "thread-id")


@pytest.mark.parametrize("model", ["gpt-5", "gpt-5.5"], ids=["unknown to it", "known to it"])
async def test_codex_with_its_built_in_provider(vllm: Vllm, model: str) -> None:
    """It tries a websocket first. To a model that it knows it offers `apply_patch`, under a grammar that vLLM
    does not have."""
    edit: Step = PATCH if model == "gpt-5.5" else Shell("ls")
    async with line("vllm", vllm.base_url, scripted(steps(edit, Shell("cat main.py"), VERDICT))) as running:
        assert_done(await run_codex(TASK, running.outside.base_url, model=model, has_own_provider=False))
        upgrade, *turns = running.outside.exchanges
        assert (upgrade.received.method, upgrade.status) == ("GET", 426)
        assert [e.status for e in turns] == [200] * 3
        await running.gateway.until_idle()
        receipts = running.gateway.receipts()
        assert [r["outcome"] for r in receipts] == ["answered"] * 3
        (session,) = await running.gateway.sessions()
        assert (session["turns"], session["side_requests"]) == (3, 0)
        if model == "gpt-5.5":
            assert all("tools: custom tools lost their grammar" in receipt["notes"] for receipt in receipts)
            assert "return b + a" in output_of_last_call(turns[-1])


def output_of_last_call(exchange: Exchange) -> str:
    outputs = [item["output"] for item in body_of(exchange)["input"] if "output" in item]
    return json.dumps(outputs[-1])


async def test_a_sub_agent_of_codex_is_linked_to_its_parent(vllm: Vllm) -> None:
    script = for_agents(
        steps(SPAWN, wait_for_agent, VERDICT), steps(Shell("cat main.py"), "It has one function."), SPAWN.flat_name
    )
    async with line("vllm", vllm.base_url, scripted(script)) as running:
        assert_done(await run_codex(TASK, running.outside.base_url))
        await assert_all_answered(running)
        await assert_one_child(running, "x-codex-parent-thread-id")


def wait_for_agent(body: Json) -> Call:
    return Call("wait_agent", {"targets": [spawned_agent_id(body)]}, "multi_agent_v1")


@pytest.mark.parametrize("provider", ["openai-compatible", "openai"])
async def test_opencode_on_dynamo(provider: str) -> None:
    """By chat completions, and by Responses without the `type` that Dynamo wants."""
    async with dynamo_line(OPENCODE_STEPS) as (running, model):
        base_url = running.outside.base_url
        if provider == "openai":
            env, arguments = openai_environment(base_url), ["-m", "openai/gpt-5"]
        else:
            env, arguments = opencode_config(base_url, model), []
        assert_done(await run_opencode(TASK, env, arguments=arguments))
        await assert_all_answered(running)
        (session,) = await running.gateway.sessions()
        assert (session["turns"], session["side_requests"]) == (len(OPENCODE_STEPS), 1)


async def test_codex_on_dynamo_does_without_the_tools_that_dynamo_refuses() -> None:
    async with dynamo_line(CODEX_STEPS) as (running, _):
        assert_done(await run_codex(TASK, running.outside.base_url))
        await assert_all_answered(running)
        (session,) = await running.gateway.sessions()
        assert session["turns"] == len(CODEX_STEPS)
        assert {tool["type"] for e in running.outside.to("/v1/") for tool in body_of(e)["tools"]} >= {"web_search"}
        for receipt in running.gateway.receipts():
            assert "tools: web_search left out" in receipt["notes"]


@asynccontextmanager
async def dynamo_line(script: Sequence[Step]) -> AsyncIterator[tuple[Line, str]]:
    replies = tuple(answer_to({}, step) for step in (TITLE, *script))
    rewrites = [at_most_tokens(MOCKER_TOKENS), replayed(steps(*script, title=TITLE))]
    options = DynamoOptions(speedup_ratio=1000, replies=replies)
    async with dynamo_stack(options) as dynamo, line("dynamo", dynamo.base_url, *rewrites) as running:
        yield running, dynamo.model
