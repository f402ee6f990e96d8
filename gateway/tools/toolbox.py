"""Which of the gateway's tools a request gets: allowed to its key, for its model, and not the client's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.config.settings import ToolSourceSettings
from gateway.core.fields import Json
from gateway.exchange import Exchange, Payload, Recognition
from gateway.tools.loop import ToolContext, ToolLoop
from policies.types import Turn, TurnKind
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Tool


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The gateway's tools for one request."""

    offered: tuple[Tool, ...] = ()
    """Added to the request."""
    intercepted: tuple[Tool, ...] = ()
    """In the request already, and run here."""

    def __bool__(self) -> bool:
        return bool(self.offered or self.intercepted)


@dataclass(frozen=True, slots=True)
class ToolCatalog:
    """The gateway's tools with the settings of their sources."""

    runtime: ToolRuntime
    settings: Mapping[str, ToolSourceSettings]
    """By name of a tool, or of the source of several (`mcp:NAME`)."""

    def offer(self, allowed: Collection[str], models: Iterable[str], declared: Collection[str]) -> ToolOffer:
        """Return the tools for one request. `allowed`: names and globs of the caller's key; `models`: names of one
        model; `declared`: the client's own tools, which never run here unless they are to be intercepted."""
        models = [*models]
        offered, intercepted = [], []
        for tool in self.allowed(allowed):
            settings = self._settings_of(tool)
            if not any(matches(model, settings.models) for model in models):
                continue
            if settings.mode == "intercept" and tool.name in declared:
                intercepted.append(tool)
            elif settings.mode == "offer" and tool.name not in declared:
                offered.append(tool)
        return ToolOffer(tuple(offered), tuple(intercepted))

    def allowed(self, allowed: Collection[str]) -> list[Tool]:
        """Return the tools that a key may use, in a steady order: the prompt begins with them."""
        return [tool for name, tool in sorted(self.runtime.tools.items()) if matches(name, allowed)]

    def listing(self, allowed: Collection[str]) -> list[Json]:
        """Return one row per tool that a key may use."""
        return [self._row(tool) for tool in self.allowed(allowed)]

    def _settings_of(self, tool: Tool) -> ToolSourceSettings:
        return self.settings.get(tool.name) or self.settings.get(tool.source) or ToolSourceSettings()

    def _row(self, tool: Tool) -> Json:
        limits = tool.limits
        row: Json = {
            "name": tool.name,
            "description": tool.description,
            "source": tool.source,
            "mode": self._settings_of(tool).mode,
            "effect": tool.effect,
            "scope": limits.scope,
            "timeout_s": limits.timeout_s,
            "ttl_s": limits.ttl_s,
            "approval": limits.approval,
            "expected_s": self.runtime.expected_s(tool.name),
            "parameters": tool.parameters,
        }
        return {key: value for key, value in row.items() if value is not None}


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether any of some names and globs is this one."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Opens the loops of a gateway that has tools."""

    catalog: ToolCatalog
    context: ToolContext

    @property
    def num_hidden_bytes(self) -> int:
        return self.context.hidden.all_bytes

    @property
    def num_cached_bytes(self) -> int:
        return self.context.runtime.num_cached_bytes

    def open_loop(self, turn: Turn, payload: Payload, exchange: Exchange) -> tuple[ToolLoop, Turn] | None:
        """Return the loop of an exchange that may call tools of the gateway or has called one, and its turn as the
        loop changes it. `payload`: what the engine would be sent without tools."""
        format_, recognition = exchange.dialect.tool_format(), exchange.recognition
        if format_ is None or recognition is None or recognition.kind is TurnKind.SIDE:
            return None
        declared = frozenset(format_.declared(exchange.payload.body))
        models = (exchange.payload.requested_model, exchange.payload.engine_model)
        offer = self.catalog.offer(exchange.caller.tools, models, declared)
        if not offer and not self._is_continued(exchange, recognition):
            return None
        if not format_.takes_tools(exchange.payload.body):
            exchange.note("tools: none are run for this kind of request")
            return None
        tools = (*offer.offered, *offer.intercepted)
        loop = ToolLoop(self.context, exchange, recognition, payload, format_, tools, declared)
        return loop, loop.prepare(turn, offer.offered)

    def forget_session(self, tenant: str, session_id: str) -> None:
        self.context.hidden.forget_session(tenant, session_id)

    def _is_continued(self, exchange: Exchange, recognition: Recognition) -> bool:
        """Return whether something is hidden of what the request follows."""
        hidden, tenant = self.context.hidden, exchange.caller.tenant
        stored_id = exchange.dialect.stateful_id(exchange.payload.body)
        if stored_id is not None and hidden.stored(tenant, stored_id) is not None:
            return True
        return hidden.knows(tenant, recognition.session_id, recognition.parent_id)
