"""Between chat completions and a provider's own messages: the request is read, and the answer is written. Pure."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from gateway.core import fields, sse
from gateway.core.fields import Json
from gateway.core.reply import TextBuffer, ToolCall, ToolCalls
from gateway.core.transport import HeaderList, UpstreamCut, UpstreamReply, by_name

CACHE_MARKERS = "cache_markers"
"""Body key by which an adapter asks for prompt-cache markers; it never leaves the gateway."""
_DATA_URL = re.compile(r"data:(image/\w+);base64,(.*)", re.DOTALL)
_OPENAI_ONLY = ("n", "logprobs", "top_logprobs", "audio", "modalities", "web_search_options", "functions")
"""Fields that change what an answer is, and that no provider here has."""
_NEUTRAL = {"n": 1, "modalities": ["text"]}


class Untranslatable(Exception):
    """The request has something that the provider's dialect lacks."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in a message."""

    media_type: str
    """Empty where it is a URL."""
    data: str
    """Base64, or the URL."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool."""

    id: str
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call."""

    id: str
    parts: tuple[str | Image, ...]


Block: TypeAlias = str | Image | ToolUse | ToolResult


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """Consecutive messages of one side."""

    role: str
    """user or assistant."""
    blocks: list[Block]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion, read into values that any provider's request can be written from."""

    model: str
    system: tuple[str, ...]
    turns: list[ChatTurn]
    tools: list[Json]
    """The objects under `function`."""
    tool_choice: str
    """auto, none, required, or `=` and a name."""
    is_parallel: bool
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: list[str]
    schema: tuple[str, Json] | None
    """Name and JSON schema that the answer must fit."""
    user: str | None
    wants_stream: bool
    wants_usage: bool
    marks_cache: bool

    @property
    def goes_on(self) -> bool:
        """Whether a further turn may follow, so that the new end of this one is worth a place in a cache."""
        return bool(self.tools) or any(turn.role == "assistant" for turn in self.turns)


def read_chat(body: Json) -> ChatRequest:
    """Read the body of a chat completion. Raises Untranslatable."""
    for key in _OPENAI_ONLY:
        if body.get(key) and body[key] != _NEUTRAL.get(key):
            raise Untranslatable(f"This service has no `{key}`.", key)
    system, turns = _conversation(fields.items(body, "messages"))
    return ChatRequest(
        model=fields.text(body, "model") or "",
        system=system,
        turns=[turn for turn in turns if turn.blocks],
        tools=list(_tools(fields.items(body, "tools"))),
        tool_choice=_choice(body.get("tool_choice")),
        is_parallel=body.get("parallel_tool_calls") is not False,
        max_tokens=fields.integer(body, "max_completion_tokens") or fields.integer(body, "max_tokens"),
        temperature=_number(body, "temperature"),
        top_p=_number(body, "top_p"),
        stop=_stop(body.get("stop")),
        schema=_schema(fields.obj(body, "response_format")),
        user=fields.text(body, "user"),
        wants_stream=fields.flag(body, "stream"),
        wants_usage=fields.flag(fields.obj(body, "stream_options"), "include_usage"),
        marks_cache=fields.flag(body, CACHE_MARKERS),
    )


def _conversation(messages: list[Any]) -> tuple[tuple[str, ...], list[ChatTurn]]:
    """Leading system messages, and the turns. A later system message keeps its place, as a text of the user."""
    system: list[str] = []
    turns: list[ChatTurn] = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        role = message.get("role")
        if role in ("system", "developer") and not turns:
            system += [text for text in _texts(message.get("content"), where) if text]
            continue
        side = "assistant" if role == "assistant" else "user"
        if not turns or turns[-1].role != side:
            turns.append(ChatTurn(side, []))
        turns[-1].blocks.extend(_blocks(message, where))
    return tuple(system), turns


def _blocks(message: Json, where: str) -> Iterator[Block]:
    if message.get("role") == "tool":
        parts = tuple(_parts(message.get("content"), where))
        yield ToolResult(fields.text(message, "tool_call_id") or "", parts)
        return
    yield from (part for part in _parts(message.get("content"), where) if part)
    for number, call in enumerate(fields.items(message, "tool_calls")):
        function = fields.obj(call, "function")
        arguments = _arguments(function.get("arguments"), f"{where}.tool_calls[{number}].function.arguments")
        yield ToolUse(fields.text(call, "id") or "", fields.text(function, "name") or "", arguments)


def _parts(content: Any, where: str) -> Iterator[str | Image]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for number, part in enumerate(content):
            yield _part(part, f"{where}.content[{number}]")


def _part(part: Any, where: str) -> str | Image:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "refusal"):
        return fields.text(part, kind) or ""
    if kind == "image_url":
        url = fields.text(fields.obj(part, "image_url"), "url") or ""
        found = _DATA_URL.fullmatch(url)
        return Image(found[1], found[2]) if found else Image("", url)
    raise Untranslatable(f"A part of type {kind!r} cannot be sent to this service: use text or image_url.", where)


def _texts(content: Any, where: str) -> Iterator[str]:
    for part in _parts(content, where):
        if not isinstance(part, str):
            raise Untranslatable("A system message holds text only.", where)
        yield part


def _arguments(given: Any, where: str) -> Json:
    """Arguments of a call as an object, which providers want; text that is no JSON becomes a member of one."""
    if isinstance(given, dict):
        return given
    try:
        parsed = orjson.loads(given or "{}")
    except (orjson.JSONDecodeError, TypeError):
        if not isinstance(given, str):
            raise Untranslatable("The arguments of a call are JSON text.", where) from None
        return {"text": given}
    return parsed if isinstance(parsed, dict) else {"value": parsed}


def _tools(tools: Iterable[Any]) -> Iterator[Json]:
    for number, tool in enumerate(tools):
        function = fields.obj(tool, "function")
        if not fields.text(function, "name"):
            raise Untranslatable("Only tools of type function can be sent to this service.", f"tools[{number}]")
        yield function


def _choice(given: Any) -> str:
    if isinstance(given, dict):
        return "=" + (fields.text(fields.obj(given, "function"), "name") or "")
    return given if given in ("none", "required") else "auto"


def _schema(given: Json) -> tuple[str, Json] | None:
    wanted = fields.obj(given, "json_schema")
    if schema := fields.obj(wanted, "schema"):
        return fields.text(wanted, "name") or "output", schema
    if given.get("type") == "json_object":
        text = "Give a JSON schema (response_format of type json_schema), or ask for JSON in the prompt."
        raise Untranslatable(text, "response_format")
    return None


def _stop(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else [text for text in given or () if isinstance(text, str)]


def _number(body: Json, key: str) -> float | None:
    value = body.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# ---- the answer, written piece by piece in the order in which the provider sends it


class ChatWriter:
    """Writes one chat completion as deltas."""

    kind: str

    def __init__(self, created_at: int) -> None:
        self._frame: Json = {"id": "", "object": self.kind, "created": created_at, "model": ""}
        self._usage: Json | None = None
        self._num_calls = 0

    def open_answer(self, answer_id: str, model: str) -> None:
        self._frame |= {"id": answer_id, "model": model}
        self._write({"role": "assistant", "content": ""})

    def write_text(self, text: str) -> None:
        self._write({"content": text})

    def write_reasoning(self, text: str) -> None:
        self._write({"reasoning_content": text})

    def open_call(self, call_id: str, name: str) -> None:
        """A tool call; its arguments follow."""
        function = {"name": name, "arguments": ""}
        call = {"index": self._num_calls, "id": call_id, "type": "function", "function": function}
        self._num_calls += 1
        self._write({"tool_calls": [call]})

    def write_arguments(self, text: str) -> None:
        self._write({"tool_calls": [{"index": self._num_calls - 1, "function": {"arguments": text}}]})

    def write_finish(self, reason: str) -> None:
        self._write({}, reason)

    def write_usage(self, uncached: int, read: int, written: int, output: int) -> None:
        """Tokens of the prompt that were computed, found in the cache, and computed and cached; of the answer."""
        prompt = uncached + read + written
        self._usage = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        }

    def _write(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> None:
        raise NotImplementedError


class StreamWriter(ChatWriter):
    """As server-sent events."""

    kind = "chat.completion.chunk"

    def __init__(self, created_at: int, wants_usage: bool) -> None:
        super().__init__(created_at)
        self._wants_usage = wants_usage
        self._written: list[bytes] = []

    def flush(self) -> bytes:
        """Return the events since the last call."""
        written, self._written = b"".join(self._written), []
        return written

    def write_error(self, kind: str, message: str) -> None:
        self._written.append(sse.event(_error(kind, message, None)))

    def close(self) -> None:
        """Write the end of the stream, behind the usage where it is wanted."""
        if self._wants_usage and self._usage is not None:
            self._written.append(sse.event(orjson.dumps(self._frame | {"choices": [], "usage": self._usage})))
        self._written.append(sse.DONE)

    def _write(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        self._written.append(sse.event(orjson.dumps(self._frame | {"choices": [choice]})))


class BodyWriter(ChatWriter):
    """As one body."""

    kind = "chat.completion"

    def __init__(self, created_at: int) -> None:
        super().__init__(created_at)
        self._text, self._reasoning = TextBuffer(), TextBuffer()
        self._calls = ToolCalls(ToolCall)
        self._reason: str | None = None

    def body(self) -> bytes:
        """Return the whole answer."""
        message: Json = {"role": "assistant", "content": str(self._text) or (None if self._calls else "")}
        if reasoning := str(self._reasoning):
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self._calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        return orjson.dumps(self._frame | {"choices": [choice], "usage": self._usage})

    def _write(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> None:
        self._text.append(delta.get("content", ""))
        self._reasoning.append(delta.get("reasoning_content", ""))
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            self._calls.put_piece(call["index"], call.get("id"), function.get("name"), function["arguments"])
        self._reason = finish_reason or self._reason


# ---- answers of the upstream interface

JSON_TYPE = ("Content-Type", "application/json")
_EVENTS_TYPE = ("Content-Type", "text/event-stream; charset=utf-8")
_KEPT = frozenset(("request-id", "x-amzn-requestid", "retry-after"))
"""Headers of the provider that its answer keeps."""


class WholeReply:
    """An answer that is here already."""

    def __init__(self, status: int, header_list: HeaderList, body: bytes) -> None:
        self.status = status
        self.header_list = header_list
        self.headers: Mapping[str, str] = by_name(header_list)
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def read(self, limit_bytes: int) -> bytes:
        return self._body

    def close(self, *, reuse: bool) -> None:
        """There is nothing to give back."""


def refusal(
    status: int, message: str, param: str | None = None, kind: str = "invalid_request_error"
) -> WholeReply:
    """An error in OpenAI's words."""
    return WholeReply(status, [JSON_TYPE], _error(kind, message, param))


def _error(kind: str, message: str, param: str | None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": None}})


class TranslatedReply:
    """A provider's answer, whose stream or body is translated. Raises UpstreamCut for what cannot be read."""

    def __init__(self, reply: UpstreamReply, translate: Callable[[bytes], bytes], is_stream: bool) -> None:
        """`translate`: of each chunk of a stream, or of the whole body."""
        self.status = reply.status
        kept = [(name, value) for name, value in reply.header_list if name.lower() in _KEPT]
        self.header_list: HeaderList = [_EVENTS_TYPE if is_stream else JSON_TYPE, *kept]
        self.headers: Mapping[str, str] = by_name(self.header_list)
        self._reply = reply
        self._translate = translate

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._reply.chunks():
            if translated := self._translated(chunk):
                yield translated

    async def read(self, limit_bytes: int) -> bytes:
        return self._translated(await self._reply.read(limit_bytes))

    def close(self, *, reuse: bool) -> None:
        self._reply.close(reuse=reuse)

    def _translated(self, data: bytes) -> bytes:
        try:
            return self._translate(data)
        except (ValueError, AttributeError, sse.EventTooLong) as error:
            raise UpstreamCut(f"the answer cannot be read: {error}") from None
