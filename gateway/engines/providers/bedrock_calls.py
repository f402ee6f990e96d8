"""Calls Amazon Bedrock: chat completions by Converse and ConverseStream, signed or with a bearer key."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from urllib.parse import quote, urlsplit

import orjson

from gateway.core import fields
from gateway.core.errors import ConfigError
from gateway.core.transport import HeaderList, Timeouts, Upstream, UpstreamReply, taken
from gateway.engines.base import CHAT, Json
from gateway.engines.providers import bedrock
from gateway.engines.providers.asked import ChatRequest, Untranslatable, read
from gateway.engines.providers.aws import EventStream, NoCredentials, Signer
from gateway.engines.providers.replies import (
    MAX_BYTES,
    Listing,
    TranslatedReply,
    WholeReply,
    refusal,
    untranslatable,
)
from gateway.engines.providers.told import BodyTeller, StreamTeller

_MODELS = "/v1/models"
_JSON = ("Content-Type", "application/json")
_LISTS = (
    ("/foundation-models?byOutputModality=TEXT&byInferenceType=ON_DEMAND", "modelSummaries", "modelId"),
    ("/inference-profiles?maxResults=1000", "inferenceProfileSummaries", "inferenceProfileId"),
)
"""Pages of the control plane, with the key of their rows and that of a row's name."""


class BedrockCalls:
    """A `calling.Service`. The path of its address names models, separated by commas; without, AWS is asked."""

    def __init__(self, upstream: Upstream, base_url: str, wall_clock: Callable[[], float]) -> None:
        """Raises ConfigError without botocore."""
        try:
            self._signer = Signer()
        except ImportError:
            raise ConfigError("bedrock:// needs botocore: pip install 'turngate[bedrock]'") from None
        parts = urlsplit(base_url)
        self._upstream = upstream
        self._base_url = f"{parts.scheme}://{parts.netloc}"
        self._names = [name for name in parts.path.strip("/").split(",") if name]
        self._wall_clock = wall_clock
        self._models = Listing(wall_clock)

    async def call(
        self, method: str, path: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> UpstreamReply:
        try:
            if path == _MODELS:
                return (
                    _listed(self._names)
                    if self._names
                    else await self._models.reply(lambda: self._list(headers, timeouts))
                )
            if path.partition("?")[0] == CHAT:
                return await self._chat(headers, orjson.loads(body or b"{}"), timeouts)
        except NoCredentials as error:
            return refusal(401, str(error), kind="authentication_error")
        return refusal(404, f"Bedrock does not serve {path} here.", kind="not_found_error")

    async def _chat(self, headers: HeaderList, body: Json, timeouts: Timeouts) -> UpstreamReply:
        try:
            asked = read(body)
            sent = orjson.dumps(bedrock.request(asked))
        except Untranslatable as error:
            return untranslatable(error)
        verb = "converse-stream" if asked.wants_stream else "converse"
        url = f"{self._base_url}/model/{quote(asked.model, safe='')}/{verb}"
        reply = await self._send("POST", url, headers, sent, timeouts)
        if reply.status == 403:
            return await _denied(reply)
        return reply if reply.status != 200 else self._translated(asked, reply)

    def _translated(self, asked: ChatRequest, reply: UpstreamReply) -> TranslatedReply:
        created_at, answer_id = int(self._wall_clock()), f"chatcmpl-{uuid.uuid4().hex}"
        if not asked.wants_stream:
            body = BodyTeller(created_at)

            def whole(raw: bytes) -> bytes:
                bedrock.tell(orjson.loads(raw), body, answer_id, asked.model)
                return body.body()

            return TranslatedReply(reply, whole, is_stream=False)
        stream = StreamTeller(created_at, asked.wants_usage)
        events, cut = bedrock.BedrockEvents(stream, answer_id, asked.model), EventStream()

        def feed(chunk: bytes) -> bytes:
            for name, event in cut.feed(chunk):
                events.read(name, event)
            return stream.taken()

        return TranslatedReply(reply, feed, is_stream=True)

    async def _list(self, headers: HeaderList, timeouts: Timeouts) -> UpstreamReply:
        """Raises NoCredentials."""
        control, names = self._base_url.replace("://bedrock-runtime", "://bedrock", 1), []
        for page, rows, name in _LISTS:
            reply = await self._send("GET", control + page, headers, None, timeouts)
            if reply.status != 200:
                return reply
            body = await taken(reply, MAX_BYTES)
            names += [row[name] for row in fields.items(orjson.loads(body), rows)]
        return _listed(names)

    async def _send(
        self, method: str, url: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> UpstreamReply:
        key = [(name, value) for name, value in headers if name.lower() == "authorization"]
        signed = [_JSON, *key] if key else await self._signer.signed(method, url, [_JSON], body)
        return await self._upstream.call(method, url, signed, body, timeouts)


async def _denied(reply: UpstreamReply) -> WholeReply:
    """A model that cannot cache denies access to markers: that is about the request, and not about the key."""
    body = await taken(reply, MAX_BYTES)
    return WholeReply(400 if b"prompt caching" in body else 403, reply.header_list, body)


def _listed(names: list[str]) -> WholeReply:
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "bedrock"} for name in names]
    return WholeReply(200, [_JSON], orjson.dumps({"object": "list", "data": rows}))
