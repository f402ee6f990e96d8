from __future__ import annotations

from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from tool_runtime.mcp.transports import Incoming, Link, MendedStream


async def mended(*messages: Incoming) -> tuple[list[Incoming], Link]:
    send, receive = anyio.create_memory_object_stream[Incoming](len(messages))
    link = Link()
    with send:
        for message in messages:
            send.send_nowait(message)
    async with MendedStream(receive, link) as stream:
        return [message async for message in stream], link


def response(result: dict[str, Any]) -> SessionMessage:
    return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result=result))


async def test_tools_that_break_the_protocol_are_taken_out_of_lists() -> None:
    good = {"name": "good", "inputSchema": {"type": "object"}}
    bad: list[Any] = [
        {"name": "a"},
        {"name": "b", "inputSchema": {}},
        {"name": "c", "inputSchema": []},
        {"x": 1},
        5,
    ]
    (message,), link = await mended(response({"tools": [*bad, good], "nextCursor": "more"}))
    assert message == response({"tools": [good], "nextCursor": "more"})
    assert [*link.malformed] == ["a", "b", "c", "?"]


async def test_all_else_passes() -> None:
    messages: list[Incoming] = [
        response({"tools": "none"}),
        response({"content": [{"tools": [1]}]}),
        SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="x", params={"tools": [1]})),
        ValueError("not parsed"),
    ]
    passed, link = await mended(*messages)
    assert (passed, link.malformed) == (messages, {})


def test_the_first_reason_of_an_end_is_kept() -> None:
    link = Link()
    link.lose("it crashed")
    link.lose("its stream was closed")
    assert (link.problem, link.news.is_set()) == ("it crashed", True)
