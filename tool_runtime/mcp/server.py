"""MCP servers as sources of tools: their settings, their lists of tools, and their life through the official SDK.

Needs the extra `mcp`. It is imported only where servers are configured.
"""

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
from tool_runtime.loading import read_options
from tool_runtime.mcp.transports import Link, Transport, connected, running
from tool_runtime.types import NAME, Context, Effect, Json, OutcomeUnknown, Run, Tool, ToolError


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    """Settings of one server, which has either a command or a URL."""

    name: str
    command: str = ""
    """Program of a child that speaks over its standard input and output."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables beside PATH, HOME and the like. The child gets no other part of the environment."""
    cwd: str | None = None
    url: str = ""
    """Address of a server that speaks streamable HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    prefix: str | None = None
    """Text before the names of its tools. None: the server's name and `_`."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """`read_only`, `idempotent` or `destructive` by tool, where the server's hints are missing or wrong."""
    start_timeout_s: float = 30.0
    """Longest time from the start of the server to its list of tools."""
    max_message_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", self.name):
            raise ValueError(f"a server's name has at most 32 letters, digits, _ and -, unlike {self.name!r}")
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        for effect in self.effects.values():
            if effect not in set(Effect):
                raise ValueError(f"there is no effect {effect!r}; there are {', '.join(Effect)}")

    @property
    def source(self) -> str:
        return f"mcp:{self.name}"

    def tool_name(self, name: str) -> str:
        """Return the name under which the tool of a name is offered."""
        prefix = f"{self.name}_" if self.prefix is None else self.prefix
        return prefix + re.sub(r"[^A-Za-z0-9_-]", "_", name)


# ---- a server's list of tools and its results, as values of `tool_runtime.types`

MAX_TOOLS = 256
MAX_SCHEMA_CHARS = 64_000
MAX_DESCRIPTION_CHARS = 8_000
_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by names, and these names may look like keywords."""
_VALUES = ("const", "enum", "default", "examples")


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of one server, and the reasons why others of it are left out."""

    tools: tuple[Tool, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def listing(listed: Iterable[Listed], options: McpOptions, run: Callable[[str], Run]) -> Listing:
    """Return the tools of a server's list. `run` gives the function that calls the tool of a name."""
    tools: dict[str, Tool] = {}
    left_out: dict[str, str] = {}
    for tool in listed:
        name = options.tool_name(tool.name)
        if reason := _fault(tool, name, tools):
            left_out[tool.name] = reason
            continue
        tools[name] = Tool(
            name=name,
            description=(tool.description or tool.title or "")[:MAX_DESCRIPTION_CHARS],
            parameters=_without_patterns(tool.input_schema),
            run=run(tool.name),
            effect=_effect(tool, options),
            source=options.source,
        )
    return Listing(tuple(tools.values()), left_out)


def _fault(tool: Listed, name: str, tools: Mapping[str, Tool]) -> str:
    """Return why a tool cannot be offered. Empty: it can."""
    if not NAME.fullmatch(name):
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
    """Return the schema without its regular expressions, which can run forever. The server checks them itself."""
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


def _effect(tool: Listed, options: McpOptions) -> Effect:
    """Return the effect that the operator states, else that of the hints. Contradicting hints count as none."""
    if tool.name in options.effects:
        return Effect(options.effects[tool.name])
    hints = tool.annotations or ToolAnnotations()
    if hints.read_only_hint and not hints.destructive_hint:
        return Effect.READ_ONLY
    return Effect.IDEMPOTENT if hints.idempotent_hint and not hints.read_only_hint else Effect.DESTRUCTIVE


def result_text(result: CallToolResult) -> str:
    """Return the text that the model reads. A picture or a sound becomes a note that it exists."""
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


# ---- one running server

LOG = logging.getLogger(__name__)

HEALTHY_S = 30.0
"""A server that was up for so long is restarted at once. Another one is restarted after a growing pause."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
LISTEN_AGAIN_S = 5.0
CLOSE_S = 10.0
"""Longest wait for the end of a server. A kill takes three steps of two seconds."""
_MAX_PAGES = 100

Offer = Callable[[str, Iterable[Tool]], None]
"""(source, all of its tools): `ToolRuntime.replace`. Raises ValueError if they cannot be offered."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a server, for operators."""

    name: str
    is_up: bool
    problem: str
    """Why it is not up, or why its tools are not offered. Empty: it is up and they are."""
    tools: tuple[str, ...]
    left_out: Mapping[str, str]
    """Tools that are not offered, with the reason."""
    num_starts: int


@dataclass(frozen=True, slots=True)
class _Remote:
    """Calls one tool. It is equal for the same tool, so that another listing of it changes nothing."""

    server: McpServer
    name: str

    async def __call__(self, arguments: Json, context: Context) -> str:
        return await self.server.call(self.name, arguments)


class McpServer:
    """One server from `start` to `close`, restarted whenever it is lost."""

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
        self._listing = Listing()
        self._client: Client | None = None
        """Set while the server is up, with its link."""
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
        self._task = asyncio.create_task(self._keep(), name=self._options.source)

    async def settled(self) -> None:
        """Wait until the server is up, or has failed to start."""
        await self._is_settled.wait()

    async def close(self) -> None:
        """End the server and all processes that its command has started. They are gone when this returns."""
        self._is_closing = True
        self._scope.cancel()
        if self._task is not None:
            _, running = await asyncio.wait({self._task}, timeout=CLOSE_S)
            if running:
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=CLOSE_S)

    async def call(self, name: str, arguments: Json) -> str:
        """Return the text of a tool's result. A call waits for a starting server, but not for a failed one.

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
            raise ToolError(f"{server} gave no valid result: {_reason_of(error)}") from None
        if result.is_error:
            raise ToolError(result_text(result))
        return result_text(result)

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
        """Run the server from its start to its end, and return how long it was up. Negative: it never was."""
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
            problem = link.problem or _reason_of(error)
        late = f"it gave no list of tools within {self._options.start_timeout_s:g} s"
        self._problem = late if start.cancel_called else problem
        return self._clock() - up_since

    async def _serve(self, client: Client, link: Link) -> None:
        """Keep the list of tools up to date until the connection is lost."""
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
        found = listing(listed, self._options, partial(_Remote, self))
        found = replace(found, left_out={**found.left_out, **link.malformed})
        self._problem = ""
        if found == self._listing:
            return
        for name, reason in found.left_out.items():
            LOG.warning("MCP server %s: its tool %s is left out: %s", self.name, name, reason)
        try:
            self._offer(self._options.source, found.tools)
            self._listing = found
        except ValueError as error:
            self._problem = f"its tools are not offered: {error}"
            LOG.warning("MCP server %s: %s", self.name, self._problem)

    async def _list_again(self, client: Client, link: Link) -> None:
        """List the tools again. A server that cannot is lost: it hangs, or has forgotten the session."""
        try:
            with anyio.fail_after(self._options.start_timeout_s):
                await self._list(client, link)
        except (MCPError, ValidationError, TimeoutError) as error:
            link.lose(f"it does not list its tools: {_reason_of(error)}")

    async def _hear(self, client: Client, link: Link) -> None:
        """Listen for changes of the list at servers of the newer protocol, where that needs a request."""
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
                LOG.info("MCP server %s: changes of its list are not heard: %s", self.name, _reason_of(error))
                return
            await self._sleep(LISTEN_AGAIN_S)
            link.news.set()  # a change may have been missed


async def _note(link: Link, message: object) -> None:
    """Note a change that a server of the older protocol reports without a request."""
    if isinstance(message, ToolListChangedNotification):
        link.news.set()


def _transport(options: McpOptions) -> Transport:
    if options.url:
        return partial(connected, options.url, options.headers, options.max_message_bytes)
    command = (options.command, *options.args)
    return partial(running, command, options.env, options.cwd, options.max_message_bytes)


def _reason_of(error: BaseException) -> str:
    """Return the first cause in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return "its command, or the cwd of its options, is not there"
    return f"{type(error).__name__}: {error}".partition("\n")[0]


# ---- all servers

START_WAIT_S = 10.0
_FOREIGN_LOGS = ("mcp", "client", "httpx2")
"""Loggers of the SDK, which write session ids and content of servers. This module logs the parts that matter."""


class McpServers:
    """All configured servers. Each starts and ends independently of the others."""

    def __init__(self, servers: Iterable[Mapping[str, Any]], offer: Offer) -> None:
        """`offer` gets the tools of each server when it is up, and when they change.

        Raises ValueError for wrong settings.
        """
        options = [
            read_options(McpOptions, settings, f"MCP server {settings.get('name', '?')}") for settings in servers
        ]
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
        """Start all, and wait at most `wait_s` until each is up or has failed. The others come up later."""
        for server in self._servers:
            server.start()
        if waiting := [asyncio.create_task(server.settled()) for server in self._servers]:
            _, late = await asyncio.wait(waiting, timeout=wait_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))
