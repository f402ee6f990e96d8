"""Record the real Codex against a scripted server: `python -m tests.real.record` writes the trace file.

The format is the one that `tests/traces.py` reads. Keys are redacted and directories renamed.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from tests.real.agents import AgentRun, run_codex
from tests.real.responses_server import Recorded, responses_server
from tests.real.scripts import Body, Call, Script, Shell, for_agents, spawned_agent_id, steps
from tests.traces import TRACES_DIR

Row = dict[str, Any]
SPAWN_TOOL = "multi_agent_v1__spawn_agent"
MIN_SHARED_BYTES = 100
"""Smaller values are repeated in place."""
FILES_A = {"main.py": "def add(a: int, b: int) -> int:\n    return a + b\n", "README.md": "# Adds numbers\n"}
FILES_B = {"util.py": "def twice(x: int) -> int:\n    return 2 * x\n", "notes.txt": "Check twice(0).\n"}

READ_FILES = steps(
    (Shell("ls -la"), Shell("git log --oneline --format=%s")),
    Shell("cat *.py"),
    Shell("grep -n def *.py"),
    Shell("wc -l *.py"),
    "The file defines one small function.",
)


def spawn(task: str) -> Call:
    return Call("spawn_agent", {"message": task}, namespace="multi_agent_v1")


def wait(body: Body) -> Call:
    arguments = {"targets": [spawned_agent_id(body)], "timeout_ms": 30000}
    return Call("wait_agent", arguments, namespace="multi_agent_v1")


WITH_SUB_AGENTS = for_agents(
    steps(
        Shell("ls"),
        spawn("Read the Python file and say what it defines."),
        spawn("Count the lines of the Python file."),
        wait,
        "Both agents are done.",
    ),
    steps(Shell("cat *.py"), Shell("wc -l *.py"), "It defines one function."),
    SPAWN_TOOL,
)


async def record(
    run: str, script: Script, tasks: Mapping[str, Mapping[str, str]], has_own_provider: bool = True
) -> list[Row]:
    """One concurrent session per task, each in its own directory; rows with directories renamed."""
    async with responses_server(script) as server:
        runs = await asyncio.gather(
            *(
                run_codex(task, server.base_url, files=files, has_own_provider=has_own_provider)
                for task, files in tasks.items()
            )
        )
    failed = [agent for agent in runs if agent.exit_code != 0]
    if failed:
        raise SystemExit(f"codex failed:\n{failed[0].stderr}")
    names = _directory_names(run, runs)
    return [{"run": run, **_with_names(row, names)} for row in server.recorded if row.answer]


def _directory_names(run: str, runs: list[AgentRun]) -> dict[str, str]:
    names = {}
    for number, agent in enumerate(runs, start=1):
        names[str(agent.workspace)] = f"/workspace/{run}-{number}"
        names[str(agent.workspace.parent / "home")] = "/home/agent"
    return names


def _with_names(row: Recorded, names: Mapping[str, str]) -> Row:
    headers = [[name, "<redacted>" if name == "Authorization" else value] for name, value in row.headers]
    text = json.dumps({"headers": headers, "body": json.loads(row.body) if row.body else {}})
    for directory, name in names.items():
        text = text.replace(directory, name)
    reply = None
    if row.answer is not None:
        calls = [[call.flat_name, call.arguments] for call in row.answer.calls]
        reply = {"text": row.answer.text, "calls": calls}
    return {
        "t": round(row.arrived_s, 3),
        "dur": round(row.took_s, 3),
        "conn": row.connection,
        "n_on_conn": row.num_on_connection,
        "method": row.method,
        "path": row.path,
        "status": row.status,
        **json.loads(text),
        "body_bytes": len(row.body),
        "reply": reply,
    }


class Encoder:
    """Writes a repeated value once, and a conversation as what it adds to an earlier one."""

    def __init__(self) -> None:
        self._defined: set[str] = set()
        self._conversations: dict[int, list[Any]] = {}

    def encode(self, number: int, row: Row) -> Row:
        body = dict(row["body"])
        if "tools" in body:
            body["tools"] = self._shared(body["tools"])
        if "input" in body:
            body["input"] = self._difference(number, body["input"])
        return {"n": number, **row, "headers": self._shared(row["headers"]), "body": body}

    def _shared(self, value: Any) -> Any:
        text = json.dumps(value)
        if len(text) < MIN_SHARED_BYTES:
            return value
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        if digest in self._defined:
            return {"$ref": digest}
        self._defined.add(digest)
        return {"$def": digest, "v": value}

    def _difference(self, number: int, items: list[Any]) -> dict[str, Any]:
        base, num_common = None, 0
        for earlier, conversation in self._conversations.items():
            num_equal = len(list(_common_prefix(conversation, items)))
            if num_equal > num_common:
                base, num_common = earlier, num_equal
        self._conversations[number] = items
        appended = [self._shared(item) for item in items[num_common:]]
        return {"$base": base, "$common": num_common, "append": appended}


def _common_prefix(left: list[Any], right: list[Any]) -> Iterator[tuple[Any, Any]]:
    return takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))


def after(earlier: list[Row], later: list[Row]) -> list[Row]:
    """Each run has its own server; times and connection numbers go on within one file."""
    last_s = max(row["t"] + row["dur"] for row in earlier)
    last_connection = max(row["conn"] for row in earlier)
    shifted = [row | {"t": round(row["t"] + last_s, 3), "conn": row["conn"] + last_connection} for row in later]
    return earlier + shifted


async def main() -> None:
    two = await record("codex", READ_FILES, {"Explain main.py": FILES_A, "List functions in util.py": FILES_B})
    nested = await record("codex-sub", WITH_SUB_AGENTS, {"Explain this project with two agents": FILES_A})
    builtin = await record("codex-builtin", READ_FILES, {"Explain util.py": FILES_B}, has_own_provider=False)
    rows = after(after(two, nested), builtin)
    encoder = Encoder()
    trace_file = TRACES_DIR / "codex.jsonl"
    with trace_file.open("w") as lines:
        for number, row in enumerate(rows, start=1):
            lines.write(json.dumps(encoder.encode(number, row)) + "\n")
    print(f"{trace_file}: {len(rows)} requests")


if __name__ == "__main__":
    asyncio.run(main())
