"""From the section `tools` to tools that run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from gateway.config.loading import secret
from gateway.config.tools import McpEntry, ToolRules, Tools
from gateway.core.errors import ConfigError
from gateway.core.transport import Upstream
from gateway.dialects.base import Script
from gateway.exchange import Exchange
from gateway.tools.approval import Approvals
from gateway.tools.audit import ToolAudit
from gateway.tools.hidden import Hidden
from gateway.tools.loop import Means, Residency, Rules
from gateway.tools.offers import matches
from gateway.tools.toolbox import Toolbox
from policies.types import Blocks
from tool_runtime.load import load
from tool_runtime.runtime import ToolRuntime
from tool_runtime.shared import Shared
from tool_runtime.types import Effect, Limits, Scope, Tool

if TYPE_CHECKING:
    from tool_runtime.mcp.source import McpServers

_LIMITS = (
    "timeout_s",
    "concurrency",
    "rate_per_s",
    "max_result_bytes",
    "ttl_s",
    "negative_ttl_s",
    "approval",
)


def python_tools(section: Tools) -> tuple[list[Tool], dict[str, ToolRules]]:
    """The tools of `tools.use`, and the rules of each by its name. Raises ConfigError."""
    tools: list[Tool] = []
    rules: dict[str, ToolRules] = {}
    for entry in section.use:
        secrets = {name: secret(reference) for name, reference in entry.secrets.items()}
        try:
            found = ruled(load(entry.use, entry.options | secrets), entry)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"tools.use: {error}") from None
        for tool in found:
            if tool.name in rules:
                raise ConfigError(f"tools.use: two tools are called {tool.name!r}: leave one out by its `names`")
            rules[tool.name] = entry
        tools += found
    return tools, rules


def ruled(tools: list[Tool], rules: ToolRules) -> list[Tool]:
    """Those that the rules name, under their limits. Raises ValueError when they contradict each other."""
    return [_limited(tool, rules) for tool in tools if matches(tool.name, rules.names)]


def _limited(tool: Tool, rules: ToolRules) -> Tool:
    given = {name: value for name in _LIMITS if (value := getattr(rules, name)) is not None}
    if rules.scope is not None:
        given["scope"] = Scope(rules.scope)
    limits: Limits = replace(tool.limits, **given)
    return replace(tool, limits=limits, effect=Effect(rules.effect) if rules.effect else tool.effect)


def no_residency(exchange: Exchange, script: Script) -> tuple[Blocks, int]:
    """For tools that are called by hand: there is no prompt."""
    return (), 0


class OwnTools:
    """The gateway's tools and what runs them, between `start` and `close`."""

    def __init__(
        self,
        section: Tools,
        upstream: Upstream,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        residency: Residency = no_residency,
        shared: Shared | None = None,
    ) -> None:
        """`shared`: with other gateways. Raises ConfigError."""
        tools, rules = python_tools(section)
        audit = ToolAudit(registry, self._is_tool)
        self._mcp = {f"mcp:{entry.name}": entry for entry in section.mcp}
        try:
            self.runtime = ToolRuntime(
                tools,
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
        hidden = Hidden(section.hidden_bytes, section.hidden_ttl_s)
        bounds = Rules(section.max_rounds, section.max_calls)
        means = Means(self.runtime, hidden, bounds, residency, audit.refused, clock)
        self.toolbox = Toolbox(self.runtime, {**rules, **self._mcp}, means)

    async def start(self) -> None:
        """MCP servers that are slow come up while others work."""
        if self._servers is not None:
            await self._servers.start()

    async def close(self) -> None:
        """End what runs."""
        if self._servers is not None:
            await self._servers.close()
        await self.runtime.close()

    def problems(self) -> list[str]:
        """One line per MCP server that is not up, and per tool that it cannot offer."""
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
            from tool_runtime.mcp.source import McpServers
        except ImportError as error:
            raise ConfigError(f"tools.mcp: {error.name} is not installed: pip install 'turngate[mcp]'") from None
        return McpServers(map(_server, self._mcp.values()), self._offered)

    def _offered(self, source: str, tools: Iterable[Tool]) -> None:
        self.runtime.replace(source, ruled(list(tools), self._mcp[source]))


def _server(entry: McpEntry) -> dict[str, Any]:
    """Settings of one server, as the tool runtime reads them."""
    secrets = {name: secret(reference) for name, reference in entry.env.items()}
    headers = {name: secret(reference) for name, reference in entry.headers.items()}
    where = {"command": entry.command[0], "args": entry.command[1:]} if entry.command else {"url": entry.url or ""}
    return {**entry.options, "name": entry.name, "env": secrets, "headers": headers, **where}
