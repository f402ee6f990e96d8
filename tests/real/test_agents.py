"""Real agents on real engines without a gateway: what the harness itself must be able to do."""

import asyncio
import json

from tests.real.agents import AgentRun, openai_environment, opencode_config, run_codex, run_opencode
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.rewrites import (
    as_model,
    at_most_tokens,
    replayed,
    scripted,
    typed_messages,
    without_tool_types,
)
from tests.real.scripts import Call, Shell, Step, answer_to, for_agents, spawned_agent_id, steps
from tests.real.shim import Shim, shim
from tests.real.vllm import Vllm

TASK = "Explain main.py"
READ_FILE = Call("read", {"filePath": "main.py"})
FIND_FILES = Call("glob", {"pattern": "**/*.py"})
LIST_FILES = Call("bash", {"command": "ls", "description": "Lists files"})
TITLE = "Explaining main.py"
VERDICT = "It adds two numbers."
OPENCODE_STEPS: tuple[Step, ...] = (LIST_FILES, READ_FILE, FIND_FILES, VERDICT)
CODEX_STEPS: tuple[Step, ...] = (Call("exec_command", {"cmd": "cat main.py"}), VERDICT)


def assert_done(run: AgentRun) -> None:
    assert run.exit_code == 0, run.stderr
    assert VERDICT in run.stdout


def num_agent_turns(link: Shim) -> int:
    """Requests that offer tools, all of which must have been answered."""
    assert [exchange.status for exchange in link.exchanges] == [200] * len(link.exchanges)
    return sum(bool(json.loads(exchange.received.body).get("tools")) for exchange in link.exchanges)


async def test_two_opencodes_on_vllm(vllm: Vllm) -> None:
    async with shim(vllm.base_url, scripted(steps(*OPENCODE_STEPS, title=TITLE))) as link:
        env = opencode_config(link.base_url, vllm.model)
        for run in await asyncio.gather(run_opencode(TASK, env), run_opencode(TASK, env)):
            assert_done(run)
    assert num_agent_turns(link) == 2 * len(OPENCODE_STEPS)


async def test_opencode_with_a_sub_agent_on_vllm(vllm: Vllm) -> None:
    task = Call("task", {"description": "Look", "prompt": "Read main.py", "subagent_type": "explore"})
    script = for_agents(steps(task, VERDICT), steps(READ_FILE, "It has one function."), spawning_tool="task")
    async with shim(vllm.base_url, scripted(script)) as link:
        assert_done(await run_opencode(TASK, opencode_config(link.base_url, vllm.model)))
    children = [e for e in link.exchanges if "x-parent-session-id" in dict(e.received.headers)]
    assert len(children) == 2
    assert num_agent_turns(link) == 4


async def test_opencode_with_only_the_two_openai_variables_on_vllm(vllm: Vllm) -> None:
    script = scripted(steps(*OPENCODE_STEPS, title=TITLE))
    async with shim(vllm.base_url, as_model(vllm.model), typed_messages(), script) as link:
        env = openai_environment(link.base_url)
        assert_done(await run_opencode(TASK, env, arguments=["-m", "openai/gpt-5"]))
    assert num_agent_turns(link) == len(OPENCODE_STEPS) == len(link.to("/v1/responses")) - 1


async def test_codex_with_a_sub_agent_on_vllm(vllm: Vllm) -> None:
    spawn = Call("spawn_agent", {"message": "Read main.py"}, namespace="multi_agent_v1")
    script = for_agents(
        steps(
            spawn,
            lambda body: Call("wait_agent", {"targets": [spawned_agent_id(body)]}, "multi_agent_v1"),
            VERDICT,
        ),
        steps(Shell("cat main.py"), "It has one function."),
        spawning_tool=spawn.flat_name,
    )
    async with shim(vllm.base_url, as_model(vllm.model), scripted(script)) as link:
        assert_done(await run_codex(TASK, link.base_url))
    assert num_agent_turns(link) == 5


async def test_opencode_on_dynamo() -> None:
    replies = (answer_to({}, TITLE), *(answer_to({}, step) for step in OPENCODE_STEPS))
    script = replayed(steps(*OPENCODE_STEPS, title=TITLE))
    async with dynamo_stack(DynamoOptions(speedup_ratio=1000, replies=replies)) as dynamo:
        async with shim(dynamo.base_url, script) as link:
            assert_done(await run_opencode(TASK, opencode_config(link.base_url, dynamo.model)))
        assert num_agent_turns(link) == len(OPENCODE_STEPS)


async def test_codex_on_dynamo() -> None:
    replies = tuple(answer_to({}, step) for step in CODEX_STEPS)
    rewrites = (without_tool_types("web_search"), at_most_tokens(500), replayed(steps(*CODEX_STEPS)))
    async with dynamo_stack(DynamoOptions(speedup_ratio=1000, replies=replies)) as dynamo:
        async with shim(dynamo.base_url, as_model(dynamo.model), *rewrites) as link:
            assert_done(await run_codex(TASK, link.base_url))
        assert num_agent_turns(link) == len(CODEX_STEPS)
