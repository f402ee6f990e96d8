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
from gateway.core.joining import STEP_CHARS, encoded, joined_bytes, joined_str
from gateway.core.pieces import MAX_DEPTH
from gateway.core.slices import Steps, finished
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
_VALUE_CHARS, _CONTAINER_CHARS = 16, 64
"""A value, and a list or an object, take as much time as so many characters of a text."""
_STEP_ITEMS = 8_192
MOST_SORTED = 10_000
"""Keys of an object. Of a larger one in a large body the client's order counts, since sorting is one step."""
MOST_ARGUMENT_CHARS = 256 * 1024
"""Longer arguments of a call are compared as they are written."""
_PLAIN = frozenset((int, float, bool, type(None)))


def dump(given: Any) -> bytes:
    """Return compact JSON with sorted keys."""
    try:
        return orjson.dumps(given, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # orjson reads deeper values than it writes
        return _TOO_DEEP


def dump_in_steps(given: Any) -> Steps[bytes]:
    """As `dump`, about STEP_CHARS in one step."""
    if _weight(given) <= STEP_CHARS:
        return dump(given)
    written: list[bytes] = []
    try:
        yield from _write(given, written, MAX_DEPTH)
    except orjson.JSONEncodeError:
        return _TOO_DEEP
    return (yield from joined_bytes(written))


def _write(given: Any, written: list[bytes], depth: int) -> Steps[None]:
    """Write a long value. What lies deeper than texts are cut is short, and written in one step."""
    if isinstance(given, str):
        written.append(b'"')
        for start in range(0, len(given), STEP_CHARS):
            written.append(orjson.dumps(given[start : start + STEP_CHARS])[1:-1])
            yield
        written.append(b'"')
    elif not depth or not isinstance(given, list | dict):
        written.append(orjson.dumps(given, option=orjson.OPT_SORT_KEYS))
    else:
        written.append(b"[" if isinstance(given, list) else b"{")
        yield from _write_items(given, written, depth)
        written.append(b"]" if isinstance(given, list) else b"}")


def _write_items(given: list[Any] | Json, written: list[bytes], depth: int) -> Steps[None]:
    """Write the items of a list or an object, as many in a step as are short enough together."""
    keys: list[str] = []
    if isinstance(given, dict):
        keys = sorted(given) if len(given) <= MOST_SORTED else list(given)
    comma = b""
    spans = [(at, min(at + _STEP_ITEMS, len(given))) for at in range(0, len(given), _STEP_ITEMS)][::-1]
    while spans:
        start, end = spans.pop()
        some: Any = given[start:end] if isinstance(given, list) else {key: given[key] for key in keys[start:end]}
        if _weight(some) <= STEP_CHARS:
            written += comma, orjson.dumps(some, option=orjson.OPT_SORT_KEYS)[1:-1]
            yield
        elif end - start > 1:
            middle = (start + end) // 2
            spans += (middle, end), (start, middle)
            yield
            continue
        elif isinstance(given, list):
            written.append(comma)
            yield from _write(given[start], written, depth - 1)
        else:
            written += comma, orjson.dumps(keys[start]), b":"
            yield from _write(given[keys[start]], written, depth - 1)
        comma = b","


def _weight(given: Any) -> int:
    """Return about how many characters a value has; of one with more than STEP_CHARS, only that it has more."""
    weight, left = 0, [given]
    while left and weight <= STEP_CHARS:
        one = left.pop()
        if isinstance(one, str):
            weight += len(one)
        elif isinstance(one, list | dict):
            weight += _CONTAINER_CHARS + _VALUE_CHARS * len(one)
            items = one if isinstance(one, list) else one.values()
            if weight <= STEP_CHARS and not _PLAIN.issuperset(map(type, items)):
                left += items
    return weight


def message_in_steps(role: str, members: Mapping[str, Any]) -> Steps[bytes]:
    """As `message`, of one that may be long."""
    kept = {key: member for key, member in members.items() if member not in (None, "", [])}
    text = yield from dump_in_steps([role, kept])
    return trimmed(text) if len(text) < _SHORT_BYTES else text


def message(role: str, members: Mapping[str, Any]) -> bytes:
    """Return one message: its role, then its members without empty ones."""
    text = dump([role, {key: member for key, member in members.items() if member not in (None, "", [])}])
    return trimmed(text) if len(text) < _SHORT_BYTES else text  # ten thousand short ones would hold 40 MB


_BEGINNINGS = {role: f'["{role}"'.encode() for role in ("user", "assistant", "tool", "system")}


def beginning(role: str) -> bytes:
    """Return what a message of a role begins with."""
    return _BEGINNINGS.get(role) or message(role, {})


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
    return finished(content_in_steps(given)) if isinstance(given, list) else given


def content_in_steps(given: Any) -> Steps[Any]:
    """As `content`, in steps."""
    if not isinstance(given, list):
        return given
    folded: list[Any] = []
    texts: list[str] = []
    for at, part in enumerate(given):
        text = text_of(part)
        if text is None:
            if texts:
                folded.append((yield from joined_str(texts)))
                texts.clear()
            folded.append(clean(part) if isinstance(part, dict) else part)
        else:
            texts.append(text)
        if at % _STEP_ITEMS == _STEP_ITEMS - 1:
            yield
    if not texts:
        return folded or ""
    last = yield from joined_str(texts)
    return [*folded, last] if folded else last


def text_of(part: Any) -> str | None:
    """Return the text of a text part, or of a plain string; None for anything else."""
    if isinstance(part, dict):
        part = part.get("text")
    return part if isinstance(part, str) else None


def arguments(given: Any) -> Any:
    """Return tool-call arguments parsed, as OpenCode, Qwen and pydantic-ai re-serialise them. Text that is no JSON
    stays, and a very long one."""
    if not isinstance(given, str) or len(given) > MOST_ARGUMENT_CHARS:
        return given
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError:
        return given


def system(texts: Iterable[Any]) -> bytes:
    """Return the system text of contents that come before the first message."""
    found = [content(text) if isinstance(text, list) else text for text in texts]
    return b"\n".join([text.encode() if isinstance(text, str) else dump(text) for text in found if text])


def system_in_steps(texts: Iterable[Any]) -> Steps[bytes]:
    """As `system`, in steps."""
    found = []
    for text in texts:
        one = yield from content_in_steps(text)
        if one:
            found.append((yield from encoded(one) if isinstance(one, str) else dump_in_steps(one)))
            found.append(b"\n")
    return (yield from joined_bytes(found[:-1]))


def tools(definitions: Sequence[Json]) -> ToolList:
    """Return all tools of a request."""
    return ToolList(tuple(map(tool, definitions)), tool_names(definitions))


def tools_in_steps(definitions: Sequence[Json]) -> Steps[ToolList]:
    """As `tools`, at most one in a step."""
    texts = []
    for definition in definitions:
        text = yield from dump_in_steps(_cleaned(definition))
        texts.append(text if len(text) > STEP_CHARS else trimmed(text))
        yield
    return ToolList(tuple(texts), tool_names(definitions))


def tool(definition: Json) -> bytes:
    """Return one tool definition, with or without the `function` wrapper of chat."""
    return trimmed(dump(_cleaned(definition)))


def _cleaned(definition: Json) -> Json:
    cleaned = clean(definition)
    function = cleaned.get("function")
    if isinstance(function, dict):
        cleaned["function"] = clean(function)
    return cleaned


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
