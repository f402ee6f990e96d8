"""The gateway's tools: which request may call which, the loop of its answer, and a list for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.config.tools import ToolRules
from gateway.core.fields import Json
from gateway.dialects.chat_rounds import Chat
from gateway.dialects.messages_rounds import Messages
from gateway.dialects.responses_rounds import Responses
from gateway.dialects.rounds import Format
from gateway.exchange import Exchange, Recognition
from gateway.tools.loop import Means, ToolLoop
from gateway.tools.offers import Offers
from policies.types import Turn, TurnKind
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Tool

FORMATS: Mapping[str, Format] = {"chat": Chat(), "responses": Responses(), "messages": Messages()}
"""By the name of the dialect."""


class Toolbox:
    """Makes the loops of a gateway that has tools."""

    def __init__(self, runtime: ToolRuntime, rules: Mapping[str, ToolRules], means: Means) -> None:
        """`rules`: by name of a tool, or by source."""
        self._runtime = runtime
        self._rules = rules
        self._means = means

    def begin(self, turn: Turn, exchange: Exchange, allowed: Collection[str]) -> Turn:
        """Give an exchange its loop, if it may call any tool of ours or has called one; its turn, changed as its
        request is. `allowed`: names and globs of the caller's key."""
        format_, who = FORMATS.get(exchange.dialect.name), exchange.recognition
        if format_ is None or who is None or who.kind is TurnKind.SIDE:
            return turn
        declared = frozenset(format_.declared(exchange.body))
        models = (exchange.asked_model, exchange.engine_model)
        offer = self._offers().of(allowed, models, declared)
        if not offer and not self._is_continued(exchange, who):
            return turn
        if not format_.takes_tools(exchange.body):
            exchange.notes.append("tools: none are run for this kind of request")
            return turn
        ours = (*offer.offered, *offer.intercepted)
        exchange.loop = ToolLoop(self._means, exchange, format_, ours, declared)
        return exchange.loop.prepare(turn, offer.offered)

    def _is_continued(self, exchange: Exchange, who: Recognition) -> bool:
        """Whether something is hidden of what the request follows."""
        hidden, stored_id = self._means.hidden, exchange.dialect.stateful_id(exchange.body)
        if stored_id is not None and hidden.stored(exchange.tenant, stored_id) is not None:
            return True
        return hidden.knows(exchange.tenant, who.session_id, who.parent_id)

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
