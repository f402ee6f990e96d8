"""What the clients ask: conversations of agents that grow from turn to turn, and first turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

ID = "@" * 16
"""The load generator puts the number of a conversation here, so that none comes twice."""
CALL_ID = "chatcmpl-tool-0123456789abcdef"
"""Of each tool call that the engine (`upstream.c`) answers. Every client sends it back. A history with another one
is that of another agent, which the gateway looks for among all that share a message with it."""
TURNS = 8

_WORDS = (
    "the agent reads a file before it edits, keeps each change small, runs the tests that cover it, and says what "
    "it could not check; paths are relative to the root of the repository, and output that is too long is cut in "
    'the middle. Use "apply_patch" for edits, and never guess a name.\n'
)


def text(size: int, salt: str) -> str:
    """Prose and code of so many characters; no two salts share a block of it."""
    lines = (f"{salt}:{number} {_WORDS}" for number in range(size // len(_WORDS) + 1))
    return "".join(lines)[:size]


def conversation(size_bytes: int, **options: Any) -> list[bytes]:
    """The bodies of one conversation, about `size_bytes` on average; small ones are single questions."""
    head = {"model": "fake", **options}
    if size_bytes < 4000:
        messages = [
            {"role": "system", "content": text(size_bytes - 250, "system")},
            {"role": "user", "content": f"Task {ID}: say what this does."},
        ]
        return [orjson.dumps(head | {"messages": messages})]
    tools = [_tool(number) for number in range(10)]
    step_bytes = max(1_500, size_bytes // 2 // TURNS)
    messages = [
        {"role": "system", "content": text(size_bytes - (TURNS - 1) * (step_bytes + 200) // 2 - 7_000, "system")},
        {"role": "user", "content": f"Task {ID}: make the failing test pass."},
    ]
    bodies = []
    for turn in range(TURNS):
        bodies.append(orjson.dumps(head | {"messages": messages, "tools": tools}))
        messages = [*messages, *_round(turn, step_bytes)]
    return bodies


def first_turn(size_bytes: int, **options: Any) -> list[bytes]:
    """The body of a conversation of one turn: half of it every conversation shares, half is a task of its own."""
    messages = [
        {"role": "system", "content": text(size_bytes // 2, "system")},
        {"role": "user", "content": f"Task {ID}: {text(size_bytes // 2 - 7_000, 'task')}"},
    ]
    tools = [_tool(number) for number in range(10)]
    return [orjson.dumps({"model": "fake", **options, "messages": messages, "tools": tools})]


def write(folder: Path, name: str, bodies: list[bytes]) -> list[Path]:
    paths = [folder / f"{name}-{number}.json" for number in range(len(bodies))]
    for path, body in zip(paths, bodies, strict=True):
        path.write_bytes(body)
    return paths


def _round(turn: int, size: int) -> list[dict[str, Any]]:
    arguments = orjson.dumps({"path": f"src/app/module_{turn}.py", "offset": 0, "limit": 200}).decode()
    call = {"id": CALL_ID, "type": "function", "function": {"name": "tool_0", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": CALL_ID, "content": text(size, f"result {turn}")},
    ]


def _tool(number: int) -> dict[str, Any]:
    path = {"type": "string", "description": "Path of the file, relative to the root of the repository"}
    limit = {"type": "integer", "description": "Lines to read at most", "minimum": 1}
    parameters = {"type": "object", "properties": {"path": path, "limit": limit}, "required": ["path"]}
    description = text(300, f"tool {number}")
    function = {"name": f"tool_{number}", "description": description, "parameters": parameters}
    return {"type": "function", "function": function}
