"""The gateway's tools out of its configuration: their rules, approval of calls, audit, and what runs them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.config.loading import secret
from gateway.config.settings import McpEntry, ToolSettings, ToolSourceSettings
from gateway.core import fields
from gateway.core.errors import ConfigError
from gateway.core.fields import Json, excerpt
from gateway.core.transport import Timeouts, Upstream
from gateway.telemetry.metrics import Bounded
from gateway.tools.hidden import HiddenHistory
from gateway.tools.loop import Residency, ToolContext
from gateway.tools.toolbox import Toolbox, ToolCatalog, matches
from tool_runtime.attempts import SharedExecutions
from tool_runtime.loading import load
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import (
    ALWAYS,
    Context,
    Effect,
    Execution,
    Origin,
    Result,
    Scope,
    Status,
    Tool,
    Verdict,
)

if TYPE_CHECKING:
    from tool_runtime.mcp.server import McpServers


_TIMEOUTS = Timeouts(connect_s=5.0, first_byte_s=600.0, idle_s=30.0)
_MAX_BYTES = 64 * 1024


class Approvals:
    """A `tool_runtime.Approve`: POSTs a call and its caller, and takes `{"approved": true}` for a yes."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def __call__(self, tool: Tool, arguments: Json, context: Context) -> Verdict:
        """Ask for one call. Raises what the upstream raises; then the call is refused as well."""
        url = tool.limits.approval
        if url == ALWAYS:
            return Verdict(False, "it needs approval, and no callback is configured that could give it")
        question = {
            "tool": tool.name,
            "arguments": arguments,
            "tenant": context.tenant,
            "session": context.session_id,
            "turn": context.turn_id,
            "key": context.key_id,
        }
        headers = [("Content-Type", "application/json"), ("Accept-Encoding", "identity")]
        reply = await self._upstream.call("POST", url, headers, orjson.dumps(question), _TIMEOUTS)
        try:
            body = await reply.read(_MAX_BYTES)
        finally:
            reply.close(reuse=False)
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if reply.status != 200 or not isinstance(answer, dict):
            return Verdict(False, "the approval callback did not answer the question")
        if fields.flag(answer, "approved"):
            return Verdict(True)
        return Verdict(False, fields.text(answer, "reason") or "it was not approved")


# ---- logs and counts tool calls

LOG = logging.getLogger("turngate.tool")

BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
UNKNOWN = "unknown"
"""Label for the names that models make up, of which there is no end."""


class ToolAudit:
    """Metrics and log lines of a `ToolRuntime`."""

    def __init__(self, registry: CollectorRegistry, is_tool: Callable[[str], bool]) -> None:
        """`is_tool`: whether there is a tool of this name now."""

        def counter(name: str, text: str, *labels: str) -> Bounded[Counter]:
            return Bounded(Counter(f"turngate_tool_{name}", text, ("tool", *labels), registry=registry))

        self._is_tool = is_tool
        self._requested = counter("requested", "Calls of our tools, by models")
        self._executed = counter("executed", "Executions of our tools")
        self._coalesced = counter("coalesced", "Calls that shared a running execution")
        self._cached = counter("cached", "Calls that were answered from the cache")
        self._failed = counter("failed", "Calls that did not end well", "status")
        self._saved = counter("saved_seconds", "Execution time that sharing saved")
        took = "Time of an execution"
        self._seconds = Bounded(
            Histogram("turngate_tool_seconds", took, ("tool",), buckets=BUCKETS_S, registry=registry)
        )

    def executed(self, execution: Execution) -> None:
        """A `ToolRuntime.audit`."""
        if execution.status is not Status.REFUSED:
            label = self._label(execution.tool)
            self._executed(label).inc()
            self._seconds(label).observe(execution.seconds)
        level = logging.INFO if execution.status is Status.OK else logging.WARNING
        LOG.log(level, "tool", extra={"fields": _line(execution)})

    def answered(self, result: Result) -> None:
        """A `ToolRuntime.answered`."""
        label = self._label(result.call.name)
        self._requested(label).inc()
        if result.origin is Origin.COALESCED:
            self._coalesced(label).inc()
        elif result.origin is Origin.CACHED:
            self._cached(label).inc()
        if result.status is not Status.OK:
            self._failed(label, result.status.value).inc()
        self._saved(label).inc(result.saved_s)

    def _label(self, name: str) -> str:
        return name if self._is_tool(name) else UNKNOWN


def _line(execution: Execution) -> Json:
    context = execution.context
    known = {
        "tool": excerpt(execution.tool),
        "source": execution.source,
        "status": execution.status,
        "error": execution.error,
        "tenant": context.tenant,
        "key": context.key_id,
        "session": context.session_id,
        "turn": context.turn_id,
        "call": excerpt(execution.call_id),
        "arguments_sha256": execution.arguments_sha256,
        "ms": round(execution.seconds * 1000, 1),
        "shared_by": execution.shared_by,
    }
    return {key: value for key, value in known.items() if value not in (None, "")}


# ---- from the section `tools` to tools that run

_LIMITS = (
    "timeout_s",
    "concurrency",
    "rate_per_s",
    "max_result_bytes",
    "ttl_s",
    "negative_ttl_s",
    "approval",
)


def python_tools(section: ToolSettings) -> dict[str, tuple[Tool, ToolSourceSettings]]:
    """Return the tools of `tools.use` by name, each with its settings. Raises ConfigError."""
    tools: dict[str, tuple[Tool, ToolSourceSettings]] = {}
    for entry in section.use:
        secrets = {name: secret(reference) for name, reference in entry.secrets.items()}
        try:
            found = limited(load(entry.use, entry.options | secrets), entry)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"tools.use: {error}") from None
        for tool in found:
            if tool.name in tools:
                raise ConfigError(f"tools.use: two tools are called {tool.name!r}: leave one out by its `names`")
            tools[tool.name] = tool, entry
    return tools


def limited(tools: Iterable[Tool], settings: ToolSourceSettings) -> list[Tool]:
    """Return the tools that the settings name, under their limits. Raises ValueError where limits contradict each
    other."""
    given = {name: value for name in _LIMITS if (value := getattr(settings, name)) is not None}
    if settings.scope is not None:
        given["scope"] = Scope(settings.scope)
    effect = Effect(settings.effect) if settings.effect else None
    return [
        replace(tool, limits=replace(tool.limits, **given), effect=effect or tool.effect)
        for tool in tools
        if matches(tool.name, settings.names)
    ]


class OwnTools:
    """The gateway's tools and what runs them, from `start` to `stop`."""

    def __init__(
        self,
        section: ToolSettings,
        upstream: Upstream,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        shared: SharedExecutions | None = None,
    ) -> None:
        """`shared`: executions in common with other gateways. Raises ConfigError."""
        self._section, self._clock = section, clock
        tools = python_tools(section)
        self._settings = {name: settings for name, (_, settings) in tools.items()}
        audit = ToolAudit(registry, self._is_tool)
        try:
            self.runtime = ToolRuntime(
                [tool for tool, _ in tools.values()],
                clock=clock,
                approve=Approvals(upstream),
                audit=audit.executed,
                answered=audit.answered,
                max_cache_bytes=section.cache_bytes,
                shared=shared,
            )
            self._servers = self._mcp_servers() if section.mcp else None
        except ValueError as error:
            raise ConfigError(f"tools: {error}") from None
        self.catalog = ToolCatalog(self.runtime, self._settings)

    def toolbox(self, residency: Residency) -> Toolbox:
        """Return the toolbox that opens loops over these tools. `residency` measures a prompt that has grown."""
        section = self._section
        hidden = HiddenHistory(section.hidden_bytes, section.hidden_ttl_s)
        context = ToolContext(self.runtime, hidden, section.max_rounds, section.max_calls, residency, self._clock)
        return Toolbox(self.catalog, context)

    async def start(self) -> None:
        """Begin to start MCP servers; slow ones come up while others work."""
        if self._servers is not None:
            await self._servers.start()

    async def stop(self) -> None:
        """End the servers and all executions."""
        if self._servers is not None:
            await self._servers.close()
        await self.runtime.close()

    def problems(self) -> list[str]:
        """Return one line per MCP server that is not up, and per tool that it cannot offer."""
        states = self._servers.states if self._servers is not None else []
        lines = [f"MCP server {state.name}: {state.problem}" for state in states if state.problem]
        return lines + [
            f"MCP server {state.name}: {tool} is left out: {why}"
            for state in states
            for tool, why in state.left_out.items()
        ]

    def _is_tool(self, name: str) -> bool:
        return name in self.runtime.tools

    def _mcp_servers(self) -> McpServers:
        """Imported here: it needs the extra `mcp`."""
        try:
            from tool_runtime.mcp.server import McpServers
        except ImportError as error:
            raise ConfigError(f"tools.mcp: {error.name} is not installed: pip install 'turngate[mcp]'") from None
        self._settings |= {f"mcp:{entry.name}": entry for entry in self._section.mcp}
        return McpServers(map(_server, self._section.mcp), self._offer)

    def _offer(self, source: str, tools: Iterable[Tool]) -> None:
        """Make these all the tools of an MCP server."""
        self.runtime.replace(source, limited(tools, self._settings[source]))


def _server(entry: McpEntry) -> dict[str, Any]:
    """Return the settings of one server, as the tool runtime reads them."""
    secrets = {name: secret(reference) for name, reference in entry.env.items()}
    headers = {name: secret(reference) for name, reference in entry.headers.items()}
    where = {"command": entry.command[0], "args": entry.command[1:]} if entry.command else {"url": entry.url or ""}
    return {**entry.options, "name": entry.name, "env": secrets, "headers": headers, **where}
