"""Which of the gateway's tools a request gets: allowed to its key, for its model, and not the client's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.config.tools import ToolRules
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

    def __init__(self, tools: Mapping[str, Tool], rules: Mapping[str, ToolRules]) -> None:
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

    def _rules_of(self, tool: Tool) -> ToolRules:
        return self._rules.get(tool.name) or self._rules.get(tool.source) or ToolRules()


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether any of some names and globs is this one."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
