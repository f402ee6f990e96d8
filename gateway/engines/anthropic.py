"""Anthropic's API: rented by the token, so slots and order work, and what it caches is its own business."""

from __future__ import annotations

from gateway.engines.base import CHAT, MESSAGES, Abilities, Advice, Outgoing, OutgoingRequest, Report
from gateway.engines.openai import OpenAI
from gateway.engines.providers.asked import CACHE_MARKERS

_REFUSALS = frozenset((400, 403))


class Anthropic(OpenAI):
    """Chat completions are translated on their way (`engines.providers`); `/v1/messages` pass as they are."""

    kind = "anthropic"
    probe_paths: tuple[str, ...] = ()
    is_rented = True
    name = "Anthropic"
    paths = frozenset((CHAT, MESSAGES, f"{MESSAGES}/count_tokens"))

    def abilities(self) -> Abilities:
        return Abilities(
            honours_priority=False, reports_cached_tokens=True, paths=self.paths, system_before_tools=False
        )

    def outgoing(self, asked: OutgoingRequest, abilities: Abilities) -> Outgoing:
        if asked.path != CHAT or CACHE_MARKERS in abilities.refused_fields:
            return Outgoing()
        return Outgoing(body={CACHE_MARKERS: True}, hint_names=(CACHE_MARKERS,))

    def refused_fields(self, status: int, message: str, sent: Outgoing) -> frozenset[str]:
        is_about_it = status in _REFUSALS and "cach" in message.lower()
        return frozenset((CACHE_MARKERS,)).intersection(sent.body) if is_about_it else frozenset()

    def advice(self, report: Report, abilities: Abilities) -> tuple[Advice, ...]:
        return (
            Advice(
                f"{self.name} tells nothing of its KV cache, which all its customers share: no session is held or "
                "placed for the cache's sake, and its own queue takes no order from here",
                "nothing to set: shared prefixes are marked for its prompt cache, and as many calls are open as"
                " its throttling allows",
            ),
        )
