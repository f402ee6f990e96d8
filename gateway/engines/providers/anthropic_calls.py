"""Calls Anthropic's API: chat completions translated, `/v1/messages` as they are, with the key that it wants."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from gateway.core.transport import HeaderList, Timeouts, Upstream, UpstreamReply
from gateway.engines.base import CHAT, Json
from gateway.engines.providers import anthropic
from gateway.engines.providers.asked import Untranslatable, read
from gateway.engines.providers.replies import Listing, TranslatedReply, untranslatable
from gateway.engines.providers.told import BodyTeller, StreamTeller

VERSION = ("anthropic-version", "2023-06-01")
_SENT = frozenset(
    ("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "content-type", "user-agent")
)
"""Headers of a client that are the service's business; who and what it works on are not."""
_MODELS, _MOST_MODELS = "/v1/models", "?limit=1000"


class AnthropicCalls:
    """A `calling.Service`."""

    def __init__(self, upstream: Upstream, base_url: str, wall_clock: Callable[[], float]) -> None:
        self._upstream = upstream
        self._base_url = base_url
        self._wall_clock = wall_clock
        self._models = Listing(wall_clock)

    async def call(
        self, method: str, path: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> UpstreamReply:
        headers, url = _headers(headers), self._base_url + path
        if path == _MODELS:
            return await self._models.reply(
                lambda: self._upstream.call(method, url + _MOST_MODELS, headers, None, timeouts)
            )
        if path.partition("?")[0] == CHAT:
            return await self._chat(headers, orjson.loads(body or b"{}"), timeouts)
        return await self._upstream.call(method, url, headers, body, timeouts)

    async def _chat(self, headers: HeaderList, body: Json, timeouts: Timeouts) -> UpstreamReply:
        try:
            asked = read(body)
        except Untranslatable as error:
            return untranslatable(error)
        sent, url = orjson.dumps(anthropic.request(asked)), f"{self._base_url}/v1/messages"
        reply = await self._upstream.call("POST", url, headers, sent, timeouts)
        if reply.status != 200:
            return reply
        created_at = int(self._wall_clock())
        if asked.wants_stream:
            events = anthropic.AnthropicEvents(StreamTeller(created_at, asked.wants_usage))
            return TranslatedReply(reply, events.feed, is_stream=True)
        return TranslatedReply(reply, lambda raw: _whole(raw, created_at), is_stream=False)


def _whole(raw: bytes, created_at: int) -> bytes:
    teller = BodyTeller(created_at)
    anthropic.tell(orjson.loads(raw), teller)
    return teller.body()


def _headers(headers: HeaderList) -> HeaderList:
    kept = [(name, value) for name, value in headers if name.lower() in _SENT]
    key = next((value for name, value in headers if name.lower() == "authorization"), "").removeprefix("Bearer ")
    if key:
        kept.append(("x-api-key", key))
    return kept if any(name.lower() == VERSION[0] for name, _ in kept) else [*kept, VERSION]
