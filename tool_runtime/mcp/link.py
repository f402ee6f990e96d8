"""One connection to an MCP server, below the SDK: whether it stands, and what the SDK is not to see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeAlias

import anyio
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

Incoming: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[ReadStream[Incoming], WriteStream[SessionMessage]]


class Link:
    """Shared by a transport, which tells of its end, and the task that owns it, which waits for news."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when the connection was lost, or the server says that its list has changed."""
        self.problem = ""
        """Why the connection is lost. Empty: it stands."""
        self.malformed: dict[str, str] = {}
        """Tools that were taken out of the server's list, and why."""

    def lose(self, problem: str) -> None:
        """The first reason is kept: later ones are its consequences."""
        self.problem = self.problem or problem
        self.news.set()


Transport: TypeAlias = Callable[[Link], AbstractAsyncContextManager[Streams]]


class MendedStream:
    """A read stream that takes tools whose schema breaks the protocol out of lists.

    The SDK refuses a whole list for one of them; here it costs the server that tool only.
    """

    def __init__(self, inner: ReadStream[Incoming], link: Link) -> None:
        self._inner = inner
        self._link = link

    @property
    def last_context(self) -> Any:
        """Of the SDK's own streams: who sent the message."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Incoming:
        message = await self._inner.receive()
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            tools = message.message.result.get("tools")
            if isinstance(tools, list):
                message.message.result["tools"] = [tool for tool in tools if self._is_whole(tool)]
        return message

    def _is_whole(self, tool: Any) -> bool:
        if not isinstance(tool, dict) or not isinstance(name := tool.get("name"), str):
            self._link.malformed["?"] = "it has no name"
            return False
        schema = tool.get("inputSchema")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            self._link.malformed[name] = "its inputSchema has no `type: object`"
            return False
        return True

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> MendedStream:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> MendedStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
