"""Amazon Bedrock: its adapter, its client with signatures, and chat completions by way of its Converse API."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from gateway.core import fields
from gateway.core.errors import ConfigError
from gateway.core.fields import Json
from gateway.core.transport import Body, HeaderList, Timeouts, Upstream, UpstreamReply, taken, whole
from gateway.engines.base import CHAT, Abilities, EngineAddress, ProviderClient
from gateway.engines.providers.anthropic import Anthropic
from gateway.engines.providers.translation import (
    JSON_TYPE,
    Block,
    BodyWriter,
    ChatRequest,
    ChatWriter,
    Image,
    StreamWriter,
    ToolResult,
    ToolUse,
    TranslatedReply,
    Untranslatable,
    WholeReply,
    read_chat,
    refusal,
)

_PLACE = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d)(/[^/?#]*)?/?")
"""`REGION` or `REGION/MODEL,MODEL`."""
_MODELS = "/v1/models"
_LISTS = (
    ("/foundation-models?byOutputModality=TEXT&byInferenceType=ON_DEMAND", "modelSummaries", "modelId"),
    ("/inference-profiles?maxResults=1000", "inferenceProfileSummaries", "inferenceProfileId"),
)
"""Pages of the control plane, with the key of their rows and that of a row's name."""
MAX_BYTES = 4 * 2**20
"""Of a list of models, or of a refusal."""


class Bedrock(Anthropic):
    """Chat completions with the models of many makers. A model that cannot cache refuses the markers of the first
    call; then none are sent to this address."""

    kind = "bedrock"
    service_url = ""
    package = ("botocore", "bedrock")

    def service_at(self, rest: str) -> str:
        found = _PLACE.fullmatch(rest)
        return f"https://bedrock-runtime.{found[1]}.amazonaws.com{found[2] or ''}" if found else ""

    def client(
        self, upstream: Upstream, address: EngineAddress, wall_clock: Callable[[], float]
    ) -> ProviderClient:
        return BedrockClient(upstream, address.base_url, wall_clock)

    def abilities(self) -> Abilities:
        return Abilities(honours_priority=False, paths=frozenset((CHAT,)))


class BedrockClient:
    """A `ProviderClient`: signed, or with a bearer key. The path of its address names models, separated by commas;
    without a path, they are those that AWS lists."""

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

    async def call(
        self, method: str, path: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> UpstreamReply:
        try:
            if path == _MODELS:
                return _listed(self._names) if self._names else await self._list(headers, timeouts)
            if path.partition("?")[0] == CHAT:
                return await self._chat(headers, orjson.loads(whole(body or b"{}")), timeouts)
        except NoCredentials as error:
            return refusal(401, str(error), kind="authentication_error")
        return refusal(404, f"Bedrock does not serve {path} here.", kind="not_found_error")

    async def _chat(self, headers: HeaderList, body: Json, timeouts: Timeouts) -> UpstreamReply:
        try:
            chat = read_chat(body)
            sent = fields.written(bedrock_request(chat))
        except Untranslatable as error:
            return refusal(400, str(error), error.param)
        verb = "converse-stream" if chat.wants_stream else "converse"
        url = f"{self._base_url}/model/{quote(chat.model, safe='')}/{verb}"
        reply = await self._send("POST", url, headers, sent, timeouts)
        if reply.status == 403:
            return await _denied(reply)
        return reply if reply.status != 200 else self._translated(chat, reply)

    def _translated(self, chat: ChatRequest, reply: UpstreamReply) -> TranslatedReply:
        created_at, answer_id = int(self._wall_clock()), f"chatcmpl-{uuid.uuid4().hex}"
        if chat.wants_stream:
            events = BedrockEvents(StreamWriter(created_at, chat.wants_usage), answer_id, chat.model)
            return TranslatedReply(reply, events.feed, is_stream=True)
        whole = partial(_whole, BodyWriter(created_at), answer_id, chat.model)
        return TranslatedReply(reply, whole, is_stream=False)

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
        signed = [JSON_TYPE, *key] if key else await self._signer.signed(method, url, [JSON_TYPE], body)
        return await self._upstream.call(method, url, signed, body, timeouts)


async def _denied(reply: UpstreamReply) -> WholeReply:
    """A model that cannot cache denies access to markers: that is about the request, and not about the key."""
    body = await taken(reply, MAX_BYTES)
    return WholeReply(400 if b"prompt caching" in body else 403, reply.header_list, body)


def _listed(names: list[str]) -> WholeReply:
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "bedrock"} for name in names]
    return WholeReply(200, [JSON_TYPE], orjson.dumps({"object": "list", "data": rows}))


# ---- AWS: signed requests, and streams of binary events

_REGION = re.compile(r"^https://bedrock(?:-runtime)?(?:-fips)?\.([a-z0-9-]+)\.")
_DEFAULT_REGION = "us-east-1"
CREDENTIALS_S = 20.0
"""For finding or renewing them, which may ask a server."""


class NoCredentials(Exception):
    """There is nothing to sign with."""


class Signer:
    """Signs with the credentials that AWS's own tools would find: variables, profiles, roles."""

    def __init__(self) -> None:
        """Raises ImportError."""
        import botocore.session

        self._session = botocore.session.get_session()

    async def signed(self, method: str, url: str, headers: HeaderList, body: bytes | None) -> HeaderList:
        """`headers` and the signature. Raises NoCredentials."""
        try:
            async with asyncio.timeout(CREDENTIALS_S):
                return await asyncio.to_thread(self._signed, method, url, headers, body)
        except TimeoutError:
            raise NoCredentials("AWS credentials were not found in time") from None

    def _signed(self, method: str, url: str, headers: HeaderList, body: bytes | None) -> HeaderList:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        try:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise NoCredentials("there are no AWS credentials: set `api_key`, or what AWS's own tools read")
            found = _REGION.match(url)
            region = found[1] if found else self._session.get_config_variable("region") or _DEFAULT_REGION
            request: Any = AWSRequest(method, url, dict(headers), body)
            SigV4Auth(credentials.get_frozen_credentials(), "bedrock", region).add_auth(request)
        except BotoCoreError as error:
            raise NoCredentials(str(error)) from None
        return list(request.headers.items())


class EventStream:
    """Cuts `application/vnd.amazon.eventstream` into events."""

    def __init__(self) -> None:
        from botocore.eventstream import EventStreamBuffer

        self._buffer: Any = EventStreamBuffer()

    def feed(self, chunk: bytes) -> Iterator[tuple[str, Json]]:
        """Name and content of each event that is complete. Raises ValueError for what is no such stream."""
        from botocore.eventstream import ParserError

        try:
            self._buffer.add_data(chunk)
            for message in self._buffer:
                name = message.headers.get(":event-type") or message.headers.get(":exception-type") or "Exception"
                yield name, orjson.loads(message.payload or b"{}")
        except ParserError as error:
            raise ValueError(str(error)) from None


# ---- a chat completion as a request of Converse

_CACHE_POINT: Json = {"cachePoint": {"type": "default"}}


def bedrock_request(chat: ChatRequest) -> Json:
    """Body of a call of Converse or ConverseStream. Raises Untranslatable."""
    messages = [{"role": turn.role, "content": list(map(_block, turn.blocks))} for turn in chat.turns]
    body: Json = {"messages": messages}
    if chat.system:
        body["system"] = [{"text": text} for text in chat.system]
    if chat.tools and not (chat.tool_choice == "none" and not _has_tool_blocks(chat)):
        body["toolConfig"] = _tools(chat)
    if limits := _limits(chat):
        body["inferenceConfig"] = limits
    if chat.schema is not None:
        name, schema = chat.schema
        named = {"jsonSchema": {"name": name, "schema": fields.written(schema).decode()}}
        body["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": named}}
    if chat.marks_cache:
        _mark(body, chat.goes_on)
    return body


def _block(block: Block) -> Json:
    match block:
        case str():
            return {"text": block}
        case Image("", _):
            raise Untranslatable("Bedrock takes images as data URLs only.", "messages")
        case Image(media_type, data):
            return {"image": {"format": media_type.partition("/")[2], "source": {"bytes": data}}}
        case ToolUse(id_, name, arguments):
            return {"toolUse": {"toolUseId": id_, "name": name, "input": arguments}}
        case ToolResult(id_, parts):
            empty = [{"text": "(nothing)"}]  # an empty list is refused
            content = [_block(part) for part in parts if part] or empty
            return {"toolResult": {"toolUseId": id_, "content": content}}


def _tools(chat: ChatRequest) -> Json:
    """Converse cannot forbid calls: with `none` they stay declared if the history has any, as it demands."""
    choice, tools = chat.tool_choice, []
    for function in chat.tools:
        schema = fields.obj(function, "parameters") or {"type": "object", "properties": {}}
        spec: Json = {"name": function["name"], "inputSchema": {"json": schema}}
        if description := fields.text(function, "description"):
            spec["description"] = description
        tools.append({"toolSpec": spec})
    config: Json = {"tools": tools}
    if choice.startswith("="):
        config["toolChoice"] = {"tool": {"name": choice[1:]}}
    elif choice == "required":
        config["toolChoice"] = {"any": {}}
    return config


def _has_tool_blocks(chat: ChatRequest) -> bool:
    return any(isinstance(block, ToolUse | ToolResult) for turn in chat.turns for block in turn.blocks)


def _limits(chat: ChatRequest) -> Json:
    limits = {
        "maxTokens": chat.max_tokens,
        "temperature": chat.temperature,
        "topP": chat.top_p,
        "stopSequences": chat.stop or None,
    }
    return {key: value for key, value in limits.items() if value is not None}


def _mark(body: Json, goes_on: bool) -> None:
    """Mark as for Anthropic, in blocks of their own."""
    shared: list[Any] | None = body.get("system") or fields.obj(body, "toolConfig").get("tools")
    if shared:
        shared.append(_CACHE_POINT)
    if goes_on:
        users = [message["content"] for message in body["messages"] if message["role"] == "user"]
        for content in users[-2:]:
            content.append(_CACHE_POINT)


# ---- its answer as a chat completion

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
}
_KINDS = {
    "throttlingException": "rate_limit_error",
    "validationException": "invalid_request_error",
    "serviceUnavailableException": "overloaded_error",
}


def _whole(writer: BodyWriter, answer_id: str, model: str, raw: bytes) -> bytes:
    body: Json = orjson.loads(raw)
    writer.open_answer(answer_id, model)
    for block in fields.items(fields.obj(fields.obj(body, "output"), "message"), "content"):
        if (text := fields.text(block, "text")) is not None:
            writer.write_text(text)
        elif call := fields.obj(block, "toolUse"):
            writer.open_call(fields.text(call, "toolUseId") or "", fields.text(call, "name") or "")
            writer.write_arguments(fields.written(fields.obj(call, "input")).decode())
        elif thought := fields.obj(fields.obj(block, "reasoningContent"), "reasoningText"):
            writer.write_reasoning(fields.text(thought, "text") or "")
    writer.write_finish(_REASONS.get(fields.text(body, "stopReason") or "", "stop"))
    _write_usage(fields.obj(body, "usage"), writer)
    return writer.body()


class BedrockEvents:
    """The events of a streamed answer."""

    def __init__(self, writer: StreamWriter, answer_id: str, model: str) -> None:
        self._writer = writer
        self._stream = EventStream()
        self._id, self._model = answer_id, model
        self._has_arguments = True

    def feed(self, chunk: bytes) -> bytes:
        """Translate the events of a chunk. Raises ValueError."""
        for name, event in self._stream.feed(chunk):
            self._read(name, event)
        return self._writer.flush()

    def _read(self, name: str, event: Json) -> None:
        writer = self._writer
        if name == "messageStart":
            writer.open_answer(self._id, self._model)
        elif name == "contentBlockStart" and (call := fields.obj(fields.obj(event, "start"), "toolUse")):
            writer.open_call(fields.text(call, "toolUseId") or "", fields.text(call, "name") or "")
            self._has_arguments = False
        elif name == "contentBlockDelta":
            self._read_delta(fields.obj(event, "delta"))
        elif name == "contentBlockStop" and not self._has_arguments:
            writer.write_arguments("{}")  # of a tool without parameters, of which nothing is sent
            self._has_arguments = True
        elif name == "messageStop":
            writer.write_finish(_REASONS.get(fields.text(event, "stopReason") or "", "stop"))
        elif name == "metadata":  # the last one
            _write_usage(fields.obj(event, "usage"), writer)
            writer.close()
        elif name.endswith("Exception"):
            writer.write_error(_KINDS.get(name, "server_error"), fields.text(event, "message") or name)

    def _read_delta(self, delta: Json) -> None:
        if text := fields.text(delta, "text"):
            self._writer.write_text(text)
        elif text := fields.text(fields.obj(delta, "toolUse"), "input"):
            self._writer.write_arguments(text)
            self._has_arguments = True
        elif text := fields.text(fields.obj(delta, "reasoningContent"), "text"):
            self._writer.write_reasoning(text)


def _write_usage(usage: Json, writer: ChatWriter) -> None:
    names = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens")
    uncached, read, written, output = (fields.integer(usage, name) or 0 for name in names)
    writer.write_usage(uncached, read, written, output)
