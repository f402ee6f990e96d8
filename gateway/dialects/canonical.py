"""Canonical texts, which stay equal when a client parses its history and writes it again.

A text is compact JSON with sorted keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sys import getsizeof
from typing import Any

import orjson

from gateway.core import fields
from gateway.core.fields import Json, trimmed
from gateway.core.slices import Steps
from policies.types import value

VOLATILE = frozenset({"id", "status", "annotations", "logprobs", "cache_control", "provider_specific_fields"})
"""Keys that clients add, drop or renew from turn to turn; engines do not render them."""

_TOO_DEEP = b'"nested too deep to be compared"'


@value
class ToolList:
    """The tools of a request, in canonical form."""

    texts: tuple[bytes, ...]
    """One per tool, in the client's order."""
    names: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(getsizeof, self.texts)) + sum(map(getsizeof, self.names))


NO_TOOLS = ToolList((), ())
_SHORT_BYTES = 2_048


def dump(given: Any) -> bytes:
    """Return compact JSON with sorted keys."""
    try:
        return orjson.dumps(given, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # orjson reads deeper values than it writes
        return _TOO_DEEP


def message(role: str, members: Mapping[str, Any]) -> bytes:
    """Return one message: its role, then its members without empty ones."""
    text = dump([role, {key: member for key, member in members.items() if member not in (None, "", [])}])
    return trimmed(text) if len(text) < _SHORT_BYTES else text  # ten thousand short ones would hold 40 MB


def clean(given: Mapping[str, Any]) -> Json:
    """Return an object without nulls and volatile keys; only its top level is cleaned."""
    return {key: item for key, item in given.items() if item is not None and key not in VOLATILE}


def objects(values: Any) -> list[Json]:
    """Return the objects of a list; nothing of anything else."""
    if not isinstance(values, list):
        return []
    return values if fields.has_only_objects(values) else [one for one in values if isinstance(one, dict)]


def content(given: Any) -> Any:
    """Return message content with neighbouring text parts joined; a string when there is nothing but text."""
    if not isinstance(given, list):
        return given
    folded: list[Any] = []
    texts: list[str] = []  # neighbours, joined once: adding each to the text before it would copy that every time
    for part in given:
        text = text_of(part)
        if text is not None:
            texts.append(text)
            continue
        if texts:
            folded.append("".join(texts))
            texts = []
        folded.append(clean(part) if isinstance(part, dict) else part)
    if not folded:
        return "".join(texts)
    return [*folded, "".join(texts)] if texts else folded


def text_of(part: Any) -> str | None:
    """Return the text of a text part, or of a plain string; None for anything else."""
    if isinstance(part, dict):
        part = part.get("text")
    return part if isinstance(part, str) else None


def arguments(given: Any) -> Any:
    """Return tool-call arguments parsed, as OpenCode, Qwen and pydantic-ai re-serialise them. Text that is no JSON
    stays."""
    if not isinstance(given, str):
        return given
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError:
        return given


def system(texts: Iterable[Any]) -> bytes:
    """Return the system text of contents that come before the first message."""
    found = [content(text) if isinstance(text, list) else text for text in texts]
    return b"\n".join([text.encode() if isinstance(text, str) else dump(text) for text in found if text])


def tools(definitions: Sequence[Json]) -> ToolList:
    """Return all tools of a request."""
    return ToolList(tuple(map(tool, definitions)), tool_names(definitions))


def tools_in_steps(definitions: Sequence[Json]) -> Steps[ToolList]:
    """As `tools`, one in a step."""
    texts = []
    for definition in definitions:
        texts.append(tool(definition))
        yield
    return ToolList(tuple(texts), tool_names(definitions))


def tool(definition: Json) -> bytes:
    """Return one tool definition, with or without the `function` wrapper of chat."""
    cleaned = clean(definition)
    function = cleaned.get("function")
    if isinstance(function, dict):
        cleaned["function"] = clean(function)
    return trimmed(dump(cleaned))


def tool_names(definitions: Iterable[Json]) -> tuple[str, ...]:
    """Return the names that calls will carry. A namespace gives those of its tools, a built-in tool its type."""
    names: list[str] = []
    _add_names(names, definitions)
    return tuple(names)


def _add_names(names: list[str], definitions: Iterable[Json]) -> None:
    for definition in definitions:
        nested = objects(definition.get("tools"))
        if nested:
            _add_names(names, nested)
            continue
        function = definition.get("function")
        named = function if isinstance(function, dict) else definition
        name = named.get("name") or definition.get("type")
        if isinstance(name, str):
            names.append(name)
