"""Which of the gateway's tools a request gets: allowed to its key, for its model, and not the client's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.config.settings import ToolSourceSettings
from gateway.core.fields import Json
from gateway.exchange import Exchange, Payload, Recognition
from gateway.tools.loop import Means, ToolLoop
from policies.types import Turn, TurnKind
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Tool


@dataclass(frozen=True, slots=True)
class Offer:
    """What one request gets."""

    offered: tuple[Tool, ...] = ()
    """Added to the request."""
    intercepted: tuple[Tool, ...] = ()
    """In the request already, and run here."""

    def __bool__(self) -> bool:
        return bool(self.offered or self.intercepted)


class Offers:
    """Asked once per request. `rules`: of a tool by its name, or of all tools of a source (`mcp:NAME`)."""

    def __init__(self, tools: Mapping[str, Tool], rules: Mapping[str, ToolSourceSettings]) -> None:
        self._tools = tools
        self._rules = rules

    def of(self, allowed: Collection[str], models: Iterable[str], declared: Collection[str]) -> Offer:
        """`allowed`: names and globs of the caller's key; `models`: names of one model; `declared`: the client's
        own tools, which are never run unless they are to be intercepted."""
        models = [*models]
        offered, intercepted = [], []
        for tool in self.allowed(allowed):
            rules = self._rules_of(tool)
            if not any(matches(model, rules.models) for model in models):
                continue
            if rules.mode == "intercept" and tool.name in declared:
                intercepted.append(tool)
            elif rules.mode == "offer" and tool.name not in declared:
                offered.append(tool)
        return Offer(tuple(offered), tuple(intercepted))

    def allowed(self, allowed: Collection[str]) -> list[Tool]:
        """Those that a key may use, in a steady order: what is offered is part of the prompt."""
        return [tool for name, tool in sorted(self._tools.items()) if matches(name, allowed)]

    def mode(self, tool: Tool) -> str:
        return self._rules_of(tool).mode

    def _rules_of(self, tool: Tool) -> ToolSourceSettings:
        return self._rules.get(tool.name) or self._rules.get(tool.source) or ToolSourceSettings()


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether any of some names and globs is this one."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# ---- the gateway's tools: which request may call which, the loop of its answer, and a list for people


class Toolbox:
    """Makes the loops of a gateway that has tools."""

    def __init__(self, runtime: ToolRuntime, rules: Mapping[str, ToolSourceSettings], means: Means) -> None:
        """`rules`: by name of a tool, or by source."""
        self._runtime = runtime
        self._rules = rules
        self._means = means

    def open_loop(self, turn: Turn, payload: Payload, exchange: Exchange) -> tuple[ToolLoop, Turn] | None:
        """Return the loop of an exchange that may call tools of the gateway or has called one, and its turn as the
        loop changes it. `payload`: what the engine would be sent without tools."""
        format_, who = exchange.dialect.tool_format(), exchange.recognition
        if format_ is None or who is None or who.kind is TurnKind.SIDE:
            return None
        declared = frozenset(format_.declared(exchange.payload.body))
        models = (exchange.payload.requested_model, exchange.payload.engine_model)
        offer = self._offers().of(exchange.caller.tools, models, declared)
        if not offer and not self._is_continued(exchange, who):
            return None
        if not format_.takes_tools(exchange.payload.body):
            exchange.note("tools: none are run for this kind of request")
            return None
        ours = (*offer.offered, *offer.intercepted)
        loop = ToolLoop(self._means, exchange, payload, format_, ours, declared)
        return loop, loop.prepare(turn, offer.offered)

    def _is_continued(self, exchange: Exchange, who: Recognition) -> bool:
        """Whether something is hidden of what the request follows."""
        hidden, stored_id = self._means.hidden, exchange.dialect.stateful_id(exchange.payload.body)
        if stored_id is not None and hidden.stored(exchange.caller.tenant, stored_id) is not None:
            return True
        return hidden.knows(exchange.caller.tenant, who.session_id, who.parent_id)

    def listing(self, allowed: Collection[str]) -> list[Json]:
        """One row per tool that a key may use."""
        offers = self._offers()
        return [
            _row(tool, offers.mode(tool), self._runtime.expected_s(tool.name)) for tool in offers.allowed(allowed)
        ]

    def _offers(self) -> Offers:
        return Offers(self._runtime.tools, self._rules)


def _row(tool: Tool, mode: str, expected_s: float | None) -> Json:
    limits = tool.limits
    row: Json = {
        "name": tool.name,
        "description": tool.description,
        "source": tool.source,
        "mode": mode,
        "effect": tool.effect,
        "scope": limits.scope,
        "timeout_s": limits.timeout_s,
        "ttl_s": limits.ttl_s,
        "approval": limits.approval,
        "expected_s": expected_s,
        "parameters": tool.parameters,
    }
    return {key: value for key, value in row.items() if value is not None}
