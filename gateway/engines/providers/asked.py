"""What a chat completion asks for, read into values that any service's dialect can be written from. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from gateway.core import fields
from gateway.core.fields import Json

CACHE_MARKERS = "cache_markers"
"""Body key by which an engine's file asks for prompt-cache markers; it never leaves the gateway."""
_DATA_URL = re.compile(r"data:(image/\w+);base64,(.*)", re.DOTALL)
_OURS_ALONE = ("n", "logprobs", "top_logprobs", "audio", "modalities", "web_search_options", "functions")
"""Fields that change what an answer is, and that no service here has."""
_NEUTRAL = {"n": 1, "modalities": ["text"]}


class Untranslatable(Exception):
    """The request has something that the service's dialect lacks."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Image:
    media_type: str
    """Empty where it is a URL."""
    data: str
    """Base64, or the URL."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    id: str
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class ToolResult:
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
        """Whether a further turn may follow, so that what is new in this one is worth a place in a cache."""
        return bool(self.tools) or any(turn.role == "assistant" for turn in self.turns)


def read(body: Json) -> ChatRequest:
    """Raises Untranslatable."""
    for key in _OURS_ALONE:
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
    """Leading system messages, and the turns; a later system message is text of the user, whose place it has."""
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
    """What a model wrote may be no JSON: an object is wanted, so its text becomes one."""
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
