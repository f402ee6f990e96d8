"""Clients that are run against an engine that is scripted: how each is started, and what its model answers."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.real import parts
from tests.real.agents import (
    AgentRun,
    openai_environment,
    opencode_config,
    run_codex,
    run_command,
    run_opencode,
)
from tests.real.scripts import Answer, Body, Call, Script, Shell, Step, steps

INSIDE = Path(__file__).parent / "inside"
TASK = "Explain main.py"
VERDICT = "It adds two numbers."
MODEL = "m"
"""The one that the scripted engine serves."""
Start = Callable[[str, Path], Awaitable[AgentRun]]
"""(base URL without /v1, directory to run in) -> the run."""


@dataclass(frozen=True)
class Client:
    name: str
    start: Start
    script: Script
    num_turns: int
    """Model calls of the agent in one run."""
    num_side_requests: int = 0
    """Its other model calls: titles, summaries."""
    tells_session: bool = False
    """By a header, which a test may take away."""
    streams: bool = True
    names_directory: bool = True
    """In its prompts."""


def texts(*answers: str) -> Script:
    """For agents that offer no tools: the first text that is not in the prompt yet; prompts may hold examples."""

    def script(body: Body, turn: int) -> Answer:
        prompt = json.dumps(body["messages"])
        return Answer(next((text for text in answers if json.dumps(text)[1:-1] not in prompt), answers[-1]))

    return script


async def claude_code(base_url: str, place: Path) -> AgentRun:
    parts.require("node-agents", parts.CLAUDE_CODE_COMMAND)
    command: list[str | Path] = [
        parts.CLAUDE_CODE_COMMAND,
        "-p",
        TASK,
        "--model",
        "sonnet",
        "--allowedTools",
        "Bash Read",
    ]
    models = {f"ANTHROPIC_DEFAULT_{size}_MODEL": MODEL for size in ("OPUS", "SONNET", "HAIKU")}
    env = {
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_AUTH_TOKEN": "test-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return await run_command(command, env | models, place=place)


async def qwen_code(base_url: str, place: Path) -> AgentRun:
    """Without its memory, to which it may write after a run, by an agent of its own."""
    command = [*node_agent("qwen"), "--auth-type", "openai", "--yolo", "-p", TASK]
    home_files = {".qwen/settings.json": json.dumps({"memory": {"enableManagedAutoMemory": False}})}
    env = openai_environment(base_url) | {"OPENAI_MODEL": MODEL}
    return await run_command(command, env, home_files=home_files, place=place)


async def pi(base_url: str, place: Path) -> AgentRun:
    provider = {
        "baseUrl": f"{base_url}/v1",
        "api": "openai-completions",
        "apiKey": "test-key",
        "models": [{"id": MODEL}],
    }
    home_files = {".pi/agent/models.json": json.dumps({"providers": {"lab": provider}})}
    command = [*node_agent("pi"), "--offline", "--model", f"lab/{MODEL}", "-p", TASK]
    return await run_command(command, {}, home_files=home_files, place=place)


async def aider(base_url: str, place: Path) -> AgentRun:
    """Without a commit: its message would be one more call to the model."""
    parts.require("aider", parts.AIDER_PYTHON)
    command: list[str | Path] = [
        parts.AIDER_PYTHON,
        "-m",
        "aider",
        "--model",
        f"openai/{MODEL}",
        "--edit-format",
        "diff",
    ]
    command += ["--yes-always", "--no-auto-commits", "--no-check-update", "--no-show-model-warnings"]
    command += ["--analytics-disable", "--message", TASK, "main.py"]
    # Its prompts list files in the order of a set.
    env = {"OPENAI_API_BASE": f"{base_url}/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONHASHSEED": "0"}
    return await run_command(command, openai_environment(base_url) | env, place=place)


async def opencode(base_url: str, place: Path) -> AgentRun:
    return await run_opencode(TASK, opencode_config(base_url, MODEL), place=place)


async def codex(base_url: str, place: Path) -> AgentRun:
    return await run_codex(TASK, base_url, place=place)


def of_python(name: str) -> Start:
    async def start(base_url: str, place: Path) -> AgentRun:
        parts.require("python-agents", parts.PYTHON_AGENTS_PYTHON)
        python = parts.PYTHON_AGENTS_PYTHON
        return await run_command([python, INSIDE / "agents.py", base_url, name, TASK], {}, place=place)

    return start


def of_node(name: str, modules: Path, part: str) -> Start:
    async def start(base_url: str, place: Path) -> AgentRun:
        parts.require(part, modules / "node_modules")
        node = parts.NODE_COMMAND
        return await run_command([node, INSIDE / "agents.mjs", modules, base_url, name, TASK], {}, place=place)

    return start


def node_agent(name: str) -> list[str | Path]:
    command = parts.NODE_AGENTS_BIN_DIR / name
    parts.require("node-agents", parts.NODE_COMMAND, command)
    return [parts.NODE_COMMAND, command]


def reads(tool: str, argument: str) -> Step:
    return Call(tool, {argument: "main.py"})


def final_answer(text: str) -> Step:
    return Call("final_answer", {"answer": text})


def listing(next_step: Step) -> Script:
    return steps(Shell("ls"), next_step, VERDICT)


SMOLAGENTS_CODE = "Thought: I look.\n<code>\nprint(read('{path}'))\n</code>"
AIDER_EDIT = (
    "main.py\n```python\n<<<<<<< SEARCH\n{before}\n=======\n    return b + a\n>>>>>>> REPLACE\n```\n\n{text}"
)
AIDER_LOOKS = "I have to read README.md first."
AIDER_MISTAKE = AIDER_EDIT.format(before="    return 1", text="This is better.")
READS_TWICE = steps(reads("read", "path"), Call("read", {"path": "README.md"}), VERDICT)
CLIENTS = (
    Client("claude-code", claude_code, steps(Shell("ls"), Shell("cat main.py"), VERDICT), 3, tells_session=True),
    Client("codex", codex, steps(Shell("ls"), Shell("cat main.py"), VERDICT), 3, tells_session=True),
    Client(
        "opencode",
        opencode,
        listing(reads("read", "filePath")),
        num_turns=3,
        num_side_requests=1,
        tells_session=True,
    ),
    Client("qwen-code", qwen_code, steps(Shell("ls"), Shell("cat main.py"), VERDICT), 3),
    Client("pi", pi, listing(reads("read", "path")), 3),
    Client(
        "aider",
        aider,
        texts(AIDER_LOOKS, AIDER_MISTAKE, AIDER_EDIT.format(before="    return a + b", text=VERDICT)),
        num_turns=3,
    ),
    Client(
        "smolagents-tools",
        of_python("smolagents-tools"),
        steps(reads("read", "path"), Call("read", {"path": "README.md"}), final_answer(VERDICT)),
        num_turns=3,
        streams=False,
        names_directory=False,
    ),
    Client(
        "smolagents-tools-out-of-steps",
        of_python("smolagents-tools-out-of-steps"),
        steps(reads("read", "path"), Call("read", {"path": "README.md"}), title=VERDICT),
        num_turns=2,
        num_side_requests=1,
        streams=False,
        names_directory=False,
    ),
    Client(
        "smolagents-code",
        of_python("smolagents-code"),
        texts(
            SMOLAGENTS_CODE.format(path="main.py"),
            SMOLAGENTS_CODE.format(path="README.md"),
            f"Thought: I know.\n<code>\nfinal_answer('{VERDICT}')\n</code>",
        ),
        num_turns=3,
        streams=False,
        names_directory=False,
    ),
    Client(
        "ai-sdk", of_node("ai-sdk", parts.NODE_AGENTS_DIR, "node-agents"), READS_TWICE, 3, names_directory=False
    ),
    Client("openai-node", of_node("openai-node", parts.SDKS_DIR, "sdks"), READS_TWICE, 3, names_directory=False),
)
