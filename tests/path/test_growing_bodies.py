"""Requests share the parsed messages of a conversation that grows, and nothing on their way changes one."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from gateway.core.slices import LARGE_BYTES
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine
from tests.path.test_tools_chat import FIRST, LAST, SECOND
from tests.path.tool_dialects import speaks
from tests.path.toolkit import Bench, says

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TURNS = 3
CALL = {"id": "call_of_client_1", "type": "function", "function": {"name": "edit", "arguments": '{"path": "x"}'}}
TEXTS = [
    {"type": "text", "text": "One."},
    {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}},
]


def conversation(path: str) -> list[dict[str, Any]]:
    begins: list[dict[str, Any]] = [
        {"role": "system", "content": "Working directory: /srv/a\n" + "A rule. " * (LARGE_BYTES // 8)},
        {"role": "user", "content": TEXTS},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": CALL["id"], "content": TEXTS},
    ]
    return begins if path == CHAT else [{"role": "user", "content": "A text. " * (LARGE_BYTES // 8)}]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("volatile_spans", ["report", "move"])
@pytest.mark.parametrize("has_tools", [False, True])
async def test_no_request_changes_messages_that_others_share(
    start: Start, engine: FakeEngine, path: str, volatile_spans: str, has_tools: bool
) -> None:
    rounds = (FIRST, SECOND, LAST) if has_tools else (LAST,)
    engine.plays = [says(turn) if path == CHAT else speaks(turn) for _ in range(TURNS) for turn in rounds]
    identity = {"volatile_spans": volatile_spans, "volatile_patterns": ["^Working directory: .*\n"]}
    tools = Bench().settings() if has_tools else {}
    gateway = await start(engine, tools=tools, identity=identity, models={"aliases": {"alias": "m"}})
    messages, sessions, first = conversation(path), set[str](), None
    for turn in range(TURNS):
        sent = deepcopy(messages)
        answer = await gateway.ask({"model": "alias", "max_tokens": 99, "messages": messages}, path)
        assert answer.status == 200
        sessions.add(answer.headers["X-Turngate-Session"])
        (known,) = gateway.app.parts.handler.beginnings._kept
        assert list(known.messages) == sent
        first = first or known.messages[0]
        assert known.messages[0] is first, "it was parsed once"
        if volatile_spans == "report" and not has_tools:
            assert engine.calls[-1].body["messages"] == sent
        messages = [
            *messages,
            {"role": "assistant", "content": LAST.text},
            {"role": "user", "content": f"Go on {turn}."},
        ]
    assert len(sessions) == 1
