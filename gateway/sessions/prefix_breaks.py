"""Prefix breaks of each family: found on first prompts, counted in tokens once the engine has read them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.config.settings import IdentitySettings
from gateway.core.fields import Json
from gateway.dialects.base import Script
from gateway.exchange import Exchange, Payload
from gateway.sessions.rewrite import Rewrite, owner_of
from gateway.telemetry.metrics import Metrics
from policies.learning import TokenRatio
from policies.recognition.prefix_breaks import Break, Breaks, Found
from policies.types import TurnKind

MAX_FAMILIES = 512


@dataclass(slots=True)
class BreakTally:
    """What breaks have cost one family."""

    tenant: str
    sessions: int = 0
    """That were compared with a sibling."""
    breaks: int = 0
    wasted_tokens: int = 0
    last: Break | None = None
    last_share: float = 0.0


class PrefixBreaks:
    """The one owner of detector, tallies and rewrite. Synchronous, bounded, never keeps content."""

    def __init__(self, settings: IdentitySettings, metrics: Metrics) -> None:
        self._breaks = Breaks(MAX_FAMILIES)
        self._tallies: OrderedDict[str, BreakTally] = OrderedDict()
        self._metrics = metrics
        self._rewrite: Rewrite | None = None
        if settings.volatile_spans != "report":
            moves = settings.volatile_spans == "move"
            self._rewrite = Rewrite(moves, settings.volatile_patterns, settings.volatile_learned)

    def prepare(self, exchange: Exchange) -> Payload:
        """Return the payload without volatile spans, if the settings say so. Call it before the conversation is
        read."""
        return exchange.payload if self._rewrite is None else self._rewrite.apply(exchange)

    def recognised(self, exchange: Exchange, script: Script, tools_first: bool) -> Found | None:
        """Compare the first prompt of a session, as it will be sent, with its siblings'. None: it is no first
        prompt, or has no siblings."""
        who = exchange.recognition
        if who is None or who.turn_index or who.is_retry or who.kind is TurnKind.SIDE:
            return None
        found = self._breaks.saw(
            who.family_id, owner_of(exchange), script.tools, script.system, script.messages, tools_first
        )
        if found is not None and self._rewrite is not None:
            self._rewrite.learn(found)
        return found

    def finished(self, exchange: Exchange) -> None:
        """The exchange is over. What no engine has begun to answer has wasted nothing."""
        found = exchange.prefix_break
        if found is None or exchange.timings.first_byte_at is None:
            return
        tally = self._tallies.setdefault(found.family_id, BreakTally(exchange.caller.tenant))
        self._tallies.move_to_end(found.family_id)
        if len(self._tallies) > MAX_FAMILIES:
            self._tallies.popitem(last=False)
        tally.sessions += found.weight
        if (broken := found.broken) is None:
            return
        chars = exchange.recognition.chars if exchange.recognition else 0
        wasted_tokens = found.weight * _wasted_tokens(broken, exchange, chars)
        tally.breaks += found.weight
        tally.wasted_tokens += wasted_tokens
        tally.last, tally.last_share = broken, broken.at_chars / max(1, chars)
        self._metrics.prefix_breaks.add(found.weight, broken.kind)
        self._metrics.prefix_break_tokens.add(wasted_tokens, broken.kind)

    def joined(self, families: Iterable[Json], tenant: str | None) -> list[Json]:
        """Rows of a tenant's families with what breaks have cost them. A family that has no row gets one."""
        rows = {row["family"]: row for row in families}
        for family_id, tally in self._tallies.items():
            if tenant in (None, tally.tenant) and tally.last is not None:
                row = rows.setdefault(family_id, {"family": family_id, "turns": 0, "sessions": {}, "states": {}})
                row["prefix_breaks"] = _row(tally, tally.last)
        return list(rows.values())


def _row(tally: BreakTally, last: Break) -> Json:
    return {
        "sessions": tally.sessions,
        "breaks": tally.breaks,
        "wasted_tokens": tally.wasted_tokens,
        "wasted_tokens_per_break": round(tally.wasted_tokens / tally.breaks),
        "last": {
            "kind": last.kind,
            "part": last.part,
            "at_chars": last.at_chars,
            "at_share": round(tally.last_share, 4),
            "span_chars": last.span_chars,
            "spans": last.num_spans,
            "shared_chars": last.shared_chars,
        },
    }


def _wasted_tokens(broken: Break, exchange: Exchange, chars: int) -> int:
    """Tokens of the text that siblings share behind the break; no more than were not cached."""
    usage = exchange.reply.usage
    if usage.prompt_tokens is None:
        return round(broken.shared_chars * TokenRatio.PRIOR)
    tokens = broken.shared_chars * usage.prompt_tokens / max(1, chars)
    return round(min(tokens, usage.prompt_tokens - (usage.cached_tokens or 0)))
