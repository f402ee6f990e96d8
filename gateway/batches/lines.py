"""Reads an input file line by line: what it asks for, what is wrong with it, and which lines share a prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from gateway.batches.objects import Line, LineFault
from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json, excerpt
from gateway.core.json_edit import members_of, splice
from gateway.dialects.base import Script

MAX_LINES = 50_000
MAX_FAULTS = 1_000
"""Told of one file; it fails with the first."""
MAX_FAULT_CHARS = 1_000
MAX_CUSTOM_ID_CHARS = 512
_REQUIRED = ("custom_id", "method", "url", "body")
_SHORTEST_PREFIX_BYTES = 128
_NUM_PREFIXES = 10
_DIGEST_BYTES = 3


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the lines of a batch are checked against."""

    url: str
    check: Callable[[Json], Failure | None]
    script: Callable[[Json], Script]
    wrong_model: Callable[[str], str | None]
    """Says why nothing serves a model; None where something does."""


@dataclass(slots=True)
class Input:
    """What a file was found to be. It is asked only if there are no faults."""

    lines: list[Line] = field(default_factory=list)
    faults: list[LineFault] = field(default_factory=list)
    model: str | None = None


def read(file: Path, endpoint: Endpoint, max_line_bytes: int) -> Input:
    """Check every line. Holds one line at a time. Raises OSError."""
    found = Input()
    seen: set[str] = set()
    with file.open("rb") as source:
        for number, (offset, raw) in enumerate(_raw_lines(source, max_line_bytes)):
            if number == MAX_LINES:
                text = f"The batch has more than {MAX_LINES:,} requests."
                return Input(faults=[LineFault("too_many_tasks", text)])
            try:
                found.lines.append(_line(number, offset, raw, endpoint, found, seen, max_line_bytes))
            except _Wrong as wrong:
                text = excerpt(str(wrong), MAX_FAULT_CHARS)
                found.faults.append(LineFault(wrong.code, text, wrong.param, number + 1))
                if len(found.faults) == MAX_FAULTS:
                    return found
    if not found.lines and not found.faults:
        found.faults.append(LineFault("empty_file", "The input file has no requests."))
    return found


def body_of(raw: bytes) -> bytes:
    """The body of a line's request as it was written, less what only streams need."""
    start, end = [(start, end) for key, _, start, end in members_of(raw) if key == "body"][-1]
    return splice(raw[start:end], orjson.loads(raw[start:end]), {}, ("stream", "stream_options"))


def prefix_key(pieces: Iterator[bytes]) -> bytes:
    """Sorts texts so that those with a long common prefix stand side by side: hashes of ever longer prefixes."""
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    key, size, limit = b"", 0, _SHORTEST_PREFIX_BYTES
    for piece in pieces:
        at = 0
        while at < len(piece):
            part = piece[at : at + limit - size]
            hasher.update(part)
            at, size = at + len(part), size + len(part)
            if size == limit:
                key, limit = key + hasher.digest(), limit * 2
                if len(key) == _NUM_PREFIXES * _DIGEST_BYTES:
                    return key
    return key + hasher.digest()


class _Wrong(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


def _raw_lines(source: IO[bytes], max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Offset and text of each line that is not blank; of one that is too long its start."""
    offset = 0
    while raw := source.readline(max_bytes + 2):
        size = len(raw)
        while not raw.endswith(b"\n") and (more := source.readline(max_bytes)):
            size += len(more)
            if more.endswith(b"\n"):
                break
        if raw.strip():
            yield offset, raw
        offset += size


def _line(
    number: int, offset: int, raw: bytes, endpoint: Endpoint, found: Input, seen: set[str], max_bytes: int
) -> Line:
    if len(raw.rstrip(b"\r\n")) > max_bytes:
        raise _Wrong("invalid_request", f"This line is longer than {max_bytes:,} bytes.")
    told = _parsed(raw)
    custom_id, body = told["custom_id"], told["body"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        text = f"custom_id must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters."
        raise _Wrong("invalid_request", text, "custom_id")
    if custom_id in seen:
        text = (
            f"The custom_id '{custom_id}' for this request is a duplicate of another request. The custom_id"
            " parameter must be unique for each request in a batch."
        )
        raise _Wrong("duplicate_custom_id", text, "custom_id")
    seen.add(custom_id)
    if told["method"] != "POST":
        raise _Wrong("invalid_method", f"The method must be POST, not {told['method']!r}.", "method")
    if told["url"] != endpoint.url:
        text = f"The URL {told['url']!r} of this request does not match the batch's endpoint '{endpoint.url}'."
        raise _Wrong("url_mismatch", text, "url")
    if not isinstance(body, dict):
        raise _Wrong("invalid_request", "The body must be a JSON object.", "body")
    if (failure := endpoint.check(body)) is not None:
        raise _Wrong("invalid_request", failure.message, f"body.{failure.param}" if failure.param else "body")
    _check_model(fields.text(body, "model") or "", endpoint, found)
    return Line(number, offset, len(raw), custom_id, prefix_key(_pieces(endpoint.script(body))))


def _parsed(raw: bytes) -> Mapping[str, Any]:
    try:
        told = orjson.loads(raw)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict):
        raise _Wrong("invalid_json_line", "This line is not parseable as valid JSON.")
    for key in _REQUIRED:
        if key not in told:
            raise _Wrong("missing_required_parameter", f"Missing required parameter: '{key}'.", key)
    return told


def _check_model(model: str, endpoint: Endpoint, found: Input) -> None:
    """The first line decides which model the batch is for."""
    if found.model is None:
        found.model = model
        if (why := endpoint.wrong_model(model)) is not None:
            raise _Wrong("model_not_found", why, "body.model")
    elif model != found.model:
        text = f"The model '{model}' of this request does not match '{found.model}' of the requests before it."
        raise _Wrong("model_mismatch", text, "body.model")


def _pieces(script: Script) -> Iterator[bytes]:
    """The conversation in the order that most templates render it."""
    yield script.system
    yield from script.tools
    yield from script.messages
