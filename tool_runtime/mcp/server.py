"""How one MCP server is configured."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
    ToolListChangedNotification,
)
from mcp_types import Tool as Listed
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from tool_runtime.arguments import Schema
from tool_runtime.mcp import http, stdio
from tool_runtime.mcp.stdio import Link, Transport
from tool_runtime.options import read
from tool_runtime.types import Context, Effect, Json, OutcomeUnknown, Run, Tool, ToolError


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    """Settings of one server."""

    name: str
    command: str = ""
    """Started as a child that speaks over its standard input and output; or"""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to PATH, HOME and the like; nothing else of our environment is given to it."""
    cwd: str | None = None
    url: str = ""
    """reached by streamable HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    prefix: str | None = None
    """Put before the names of its tools. None: its own name and `_`."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """`read_only`, `idempotent` or `destructive` by tool, where the server's hints are missing or wrong."""
    start_timeout_s: float = 30.0
    """From the start of the server to its list of tools."""
    max_message_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", self.name):
            raise ValueError(f"a server's name has at most 32 letters, digits, _ and -, unlike {self.name!r}")
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        for effect in self.effects.values():
            if effect not in set(Effect):
                raise ValueError(f"there is no effect {effect!r}; there are {', '.join(Effect)}")


# ---- what an MCP server says, in our terms: its list of tools, and what a call gave

MAX_TOOLS = 256
MAX_SCHEMA_CHARS = 64_000
MAX_DESCRIPTION_CHARS = 8_000
_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by names, which may be those of keywords."""
_VALUES = ("const", "enum", "default", "examples")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of one server, and why others of it are left out."""

    tools: tuple[Tool, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a server's tools are offered."""

    source: str
    prefix: str
    effects: Mapping[str, str]
    """What the operator knows better than the server's hints, by the server's name of the tool."""


def listing(listed: Iterable[Listed], terms: Terms, run: Callable[[str], Run]) -> Listing:
    """`run` gives what calls the tool of a name."""
    tools: dict[str, Tool] = {}
    left_out: dict[str, str] = {}
    for tool in listed:
        name = terms.prefix + re.sub(r"[^A-Za-z0-9_-]", "_", tool.name)
        if reason := _fault(tool, name, tools):
            left_out[tool.name] = reason
            continue
        tools[name] = Tool(
            name=name,
            description=(tool.description or tool.title or "")[:MAX_DESCRIPTION_CHARS],
            parameters=_without_patterns(tool.input_schema),
            run=run(tool.name),
            effect=_effect(tool, terms),
            source=terms.source,
        )
    return Listing(tuple(tools.values()), left_out)


def _fault(tool: Listed, name: str, tools: Mapping[str, Tool]) -> str:
    """Why a tool cannot be offered; empty if it can."""
    if not _NAME.fullmatch(name):
        return f"{name!r} is no name that models can call: at most 64 letters, digits, _ and -"
    if name in tools:
        return f"another tool is named {name!r}"
    if len(tools) >= MAX_TOOLS:
        return f"the server has more than {MAX_TOOLS} tools"
    if len(json.dumps(tool.input_schema)) > MAX_SCHEMA_CHARS:
        return f"its schema is longer than {MAX_SCHEMA_CHARS} characters"
    try:
        Schema(tool.input_schema)
    except ValueError as error:
        return str(error)
    if foreign := next(_foreign_references(tool.input_schema), ""):
        return f"its schema refers to {foreign}, which lies outside it"
    return ""


def _foreign_references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            yield reference
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _foreign_references(part)


def _without_patterns(schema: Any, is_schema: bool = True) -> Any:
    """A server's regular expressions would run here, where one can take forever. The server itself checks them."""
    if isinstance(schema, list):
        return [_without_patterns(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: part
        if is_schema and key in _VALUES
        else _without_patterns(part, not is_schema or key not in _BY_NAME)
        for key, part in schema.items()
        if not is_schema or key not in ("pattern", "patternProperties")
    }


def _effect(tool: Listed, terms: Terms) -> Effect:
    """Hints that contradict each other count as none."""
    if tool.name in terms.effects:
        return Effect(terms.effects[tool.name])
    hints = tool.annotations or ToolAnnotations()
    if hints.read_only_hint and not hints.destructive_hint:
        return Effect.READ_ONLY
    return Effect.IDEMPOTENT if hints.idempotent_hint and not hints.read_only_hint else Effect.DESTRUCTIVE


def text_of(result: CallToolResult) -> str:
    """What the model reads: texts as they are, of pictures and sounds that they are there."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_block, result.content))


def _block(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            return f"[{block.name}: {block.uri}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource():
            return f"[{block.resource.uri}: {block.resource.mime_type or 'data'}, not shown]"
        case _:
            return f"[{block.mime_type}, not shown]"


# ---- keeps one MCP server running and calls its tools, through the official SDK

LOG = logging.getLogger(__name__)

HEALTHY_S = 30.0
"""A server that was up for so long is started again at once; one that was not, after a pause that grows."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
LISTEN_AGAIN_S = 5.0
CLOSE_S = 10.0
"""Longest wait for the end of a server; to kill one takes three steps of two seconds."""
_MAX_PAGES = 100

Offer = Callable[[str, Iterable[Tool]], None]
"""(source, all of its tools): `ToolRuntime.replace`. Raises ValueError if they cannot be offered."""


@dataclass(frozen=True, slots=True)
class State:
    """What people are told of a server."""

    name: str
    is_up: bool
    problem: str
    """Why it is not up, or why its tools are not offered; empty if all is well."""
    tools: tuple[str, ...]
    left_out: Mapping[str, str]
    """Tools that are not offered, and why."""
    num_starts: int


@dataclass(frozen=True, slots=True)
class _Remote:
    """Calls one tool; equal for the same tool, so that listing it again changes nothing."""

    server: McpServer
    name: str

    async def __call__(self, arguments: Json, context: Context) -> str:
        return await self.server.call(self.name, arguments)


class McpServer:
    """One server, from `start` to `close`."""

    def __init__(
        self,
        options: McpOptions,
        offer: Offer,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = options.name
        self._options = options
        self._offer = offer
        self._clock = clock
        self._sleep = sleep
        self._connect = _transport(options)
        self._terms = Terms(
            source=f"mcp:{options.name}",
            prefix=f"{options.name}_" if options.prefix is None else options.prefix,
            effects=options.effects,
        )
        self._listing = Listing()
        self._client: Client | None = None
        """While the server is up, through"""
        self._link = Link()
        self._problem = "it was not started"
        self._num_starts = 0
        self._is_settled = asyncio.Event()
        """Clear while the server starts."""
        self._scope = anyio.CancelScope()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        names = tuple(tool.name for tool in self._listing.tools)
        is_up = self._client is not None
        return State(self.name, is_up, self._problem, names, self._listing.left_out, self._num_starts)

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=self._terms.source)

    async def settled(self) -> None:
        """Return when the server is up, or did not come up."""
        await self._is_settled.wait()

    async def close(self) -> None:
        """The server, and with it all that a command has started, is gone when this returns."""
        self._is_closing = True
        self._scope.cancel()
        if self._task is not None:
            _, running = await asyncio.wait({self._task}, timeout=CLOSE_S)
            if running:
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=CLOSE_S)

    async def call(self, name: str, arguments: Json) -> str:
        """The text of a tool's result. A call waits for a server that is starting, not for one that has failed to.

        Raises ToolError, and OutcomeUnknown if the server was lost after the call may have reached it.
        """
        server = f"the MCP server {self.name}"
        await self._is_settled.wait()
        client, link = self._client, self._link
        if client is None:
            raise ToolError(f"{server} is not running")
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            link.news.set()  # it may be gone, or have another list
            if error.code in (CONNECTION_CLOSED, PARSE_ERROR):
                raise OutcomeUnknown(f"{server} was lost during the call: {error.message}") from None
            raise ToolError(error.message) from None
        except (ValidationError, RuntimeError) as error:
            raise ToolError(f"{server} gave no valid result: {_told(error)}") from None
        if result.is_error:
            raise ToolError(text_of(result))
        return text_of(result)

    async def _keep(self) -> None:
        pause_s = 0.0
        try:
            while not self._is_closing:
                with anyio.CancelScope() as self._scope:
                    was_up_s = await self._live()
                    if was_up_s > HEALTHY_S:
                        pause_s = 0.0
                    elif was_up_s < 0:
                        pause_s = max(pause_s, FIRST_PAUSE_S)
                    LOG.warning("MCP server %s: %s; it is started in %g s", self.name, self._problem, pause_s)
                    if pause_s:
                        self._is_settled.set()
                        await self._sleep(pause_s)
                    pause_s = min(max(pause_s * 2, FIRST_PAUSE_S), MAX_PAUSE_S)
        finally:
            self._is_settled.set()

    async def _live(self) -> float:
        """One run of the server, from its start to its end. Gives how long it was up; negative: never."""
        self._is_settled.clear()
        self._num_starts += 1
        up_since = math.inf
        link = Link()
        start = anyio.CancelScope(deadline=anyio.current_time() + self._options.start_timeout_s)
        try:
            with start:
                async with Client(self._connect(link), message_handler=partial(_note, link), cache=None) as client:
                    await self._list(client, link)
                    start.deadline = math.inf
                    up_since = self._clock()
                    await self._serve(client, link)
            problem = link.problem
        except Exception as error:  # of a library, a child or the network: it ends this run, not the next one
            problem = link.problem or _told(error)
        late = f"it gave no list of tools within {self._options.start_timeout_s:g} s"
        self._problem = late if start.cancel_called else problem
        return self._clock() - up_since

    async def _serve(self, client: Client, link: Link) -> None:
        """Return when the connection is lost."""
        self._client, self._link = client, link
        self._is_settled.set()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._hear, client, link)
                while not link.problem:
                    await link.news.wait()
                    link.news.clear()
                    if not link.problem:
                        await self._list_again(client, link)
                group.cancel_scope.cancel()
        finally:
            self._client, self._problem = None, link.problem
            self._is_settled.clear()

    async def _list(self, client: Client, link: Link) -> None:
        listed: list[Listed] = []
        cursor: str | None = None
        link.malformed.clear()
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        found = listing(listed, self._terms, partial(_Remote, self))
        found = replace(found, left_out={**found.left_out, **link.malformed})
        self._problem = ""
        if found == self._listing:
            return
        for name, reason in found.left_out.items():
            LOG.warning("MCP server %s: its tool %s is left out: %s", self.name, name, reason)
        try:
            self._offer(self._terms.source, found.tools)
            self._listing = found
        except ValueError as error:
            self._problem = f"its tools are not offered: {error}"
            LOG.warning("MCP server %s: %s", self.name, self._problem)

    async def _list_again(self, client: Client, link: Link) -> None:
        """A server that cannot is lost: it hangs, or has forgotten our session."""
        try:
            with anyio.fail_after(self._options.start_timeout_s):
                await self._list(client, link)
        except (MCPError, ValidationError, TimeoutError) as error:
            link.lose(f"it does not list its tools: {_told(error)}")

    async def _hear(self, client: Client, link: Link) -> None:
        """Listen for changes of the list, where that needs a request: of servers of the newer protocol."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        link.news.set()
            except SubscriptionLost:
                pass
            except (MCPError, ValidationError, RuntimeError) as error:
                LOG.info("MCP server %s: changes of its list are not heard: %s", self.name, _told(error))
                return
            await self._sleep(LISTEN_AGAIN_S)
            link.news.set()  # for what was missed


async def _note(link: Link, message: object) -> None:
    """Of servers of the older protocol, which tell of changes unasked."""
    if isinstance(message, ToolListChangedNotification):
        link.news.set()


def _transport(options: McpOptions) -> Transport:
    if options.url:
        return partial(http.connected, options.url, options.headers, options.max_message_bytes)
    command = (options.command, *options.args)
    return partial(stdio.running, command, options.env, options.cwd, options.max_message_bytes)


def _told(error: BaseException) -> str:
    """The first cause, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return "its command, or the cwd of its options, is not there"
    return f"{type(error).__name__}: {error}".partition("\n")[0]


# ---- mCP servers as sources of tools. Needs the extra `mcp`; imported only where servers are configured

START_WAIT_S = 10.0
_FOREIGN_LOGS = ("mcp", "client", "httpx2")
"""The SDK writes its own, with session ids and what servers have sent. What matters of it, we say."""


class McpServers:
    """All configured servers, each on its own: none waits for another, and none ends with another."""

    def __init__(self, servers: Iterable[Mapping[str, Any]], offer: Offer) -> None:
        """`offer` is told of the tools of each server when it is up, and when they change.

        Raises ValueError for settings that are wrong.
        """
        options = [read(McpOptions, settings, f"MCP server {settings.get('name', '?')}") for settings in servers]
        names = [each.name for each in options]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two MCP servers are named {', '.join(twice)}")
        self._servers = [McpServer(each, offer) for each in options]
        for name in _FOREIGN_LOGS:
            logging.getLogger(name).setLevel(logging.CRITICAL)

    @property
    def states(self) -> list[State]:
        return [server.state for server in self._servers]

    async def start(self, wait_s: float = START_WAIT_S) -> None:
        """Start all. Waits until each is up or has failed, at most so long: the rest come up while others work."""
        for server in self._servers:
            server.start()
        if waiting := [asyncio.create_task(server.settled()) for server in self._servers]:
            _, late = await asyncio.wait(waiting, timeout=wait_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))
