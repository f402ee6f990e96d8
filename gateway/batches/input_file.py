"""Reads and checks an input file line by line, and finds lines that share a prefix."""

from __future__ import annotations

import hashlib
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from gateway.batches.objects import Line, LineFault
from gateway.core import fields, pieces, values
from gateway.core.errors import Failure, Refused
from gateway.core.fields import Json, excerpt
from gateway.core.json_edit import members_of, splice
from gateway.core.slices import Steps, finished, freed, is_large
from gateway.dialects.base import Dialect, Script
from gateway.dialects.canonical import tools_in_steps

MAX_LINES, MAX_LINES_WITH_BLANK = 50_000, 200_000
MAX_FAULTS = 1_000
"""Reported faults of one file, which fails with the first."""
MAX_FAULT_CHARS = 1_000
MAX_CUSTOM_ID_CHARS = 512
_REQUIRED = ("custom_id", "method", "url", "body")
_SHORTEST_PREFIX_BYTES = 128
_NUM_PREFIXES = 10
_BUFFER_BYTES = 256 * 1024
_DIGEST_BYTES = 3
_LOOKED_BYTES = 64 * 1024
"""An object begins within them."""
_NO_JSON = "This line is not parseable as valid JSON."


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The checks for the lines of a batch."""

    url: str
    check: Callable[[Json], Failure | None]
    script: Callable[[Json], Steps[Script]]
    wrong_model: Callable[[str], str | None]
    """Says why no engine serves a model. None: one does."""


@dataclass(slots=True)
class Input:
    """The lines of a file. They are sent only if there are no faults."""

    lines: list[Line] = field(default_factory=list)
    faults: list[LineFault] = field(default_factory=list)
    model: str | None = None


class Rests:
    """Called after each step, in a thread: it rests as long as it works.

    The event loop gives the interpreter's lock away with each system call. A thread that computes gives it back
    after 5 ms, so that a loop that writes to many streams would wait for nearly all of its time.
    """

    WORK_S, REST_S = 0.002, 0.002

    def __init__(
        self, clock: Callable[[], float] = time.thread_time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._since = clock()

    def __call__(self) -> None:
        if self._clock() - self._since >= self.WORK_S:
            self._sleep(self.REST_S)
            self._since = self._clock()


@dataclass(frozen=True, slots=True)
class LineLimits:
    """What one line may be, as a request may."""

    num_bytes: int
    values: int


def read(
    file: Path, endpoint: Endpoint, limits: LineLimits, step_done: Callable[[], None] = lambda: None
) -> Input:
    """Check every line, with one line in memory at a time. `step_done` is called after each step of a few
    milliseconds. Raises OSError."""
    found = Input()
    seen: set[str] = set()
    number = 0
    with file.open("rb", buffering=_BUFFER_BYTES) as source:
        for num_read, (offset, raw) in enumerate(_raw_lines(source, limits.num_bytes, step_done)):
            step_done()
            if number == MAX_LINES or num_read == MAX_LINES_WITH_BLANK:
                what = f"{MAX_LINES:,} requests" if number == MAX_LINES else f"{MAX_LINES_WITH_BLANK:,} lines"
                return Input(faults=[LineFault("too_many_tasks", f"The batch has more than {what}.")])
            start = raw[:_LOOKED_BYTES].lstrip()
            if not start and len(raw) <= _LOOKED_BYTES:
                continue
            number += 1
            try:
                if not start.startswith(b"{"):
                    raise _WrongLine("invalid_json_line", _NO_JSON)
                line = _line(number - 1, offset, raw, endpoint, found, seen, limits)
                found.lines.append(finished(line, step_done))
            except _WrongLine as wrong:
                text = excerpt(str(wrong), MAX_FAULT_CHARS)
                found.faults.append(LineFault(wrong.code, text, wrong.param, number))
                if len(found.faults) == MAX_FAULTS:
                    return found
    if not found.lines and not found.faults:
        found.faults.append(LineFault("empty_file", "The input file has no requests."))
    return found


def script_of(dialect: Dialect, body: Json) -> Steps[Script]:
    """Return the conversation of a line."""
    tools = yield from tools_in_steps(dialect.definitions(body))
    return (yield from dialect.script_in_steps(body, tools))


def body_of(raw: bytes) -> bytes:
    """Return the body of a line's request as it was written, without the fields that only streams need."""
    start, end = _span_of_body(raw)
    body = raw[start:end]
    cut = finished(pieces.cut(body)) if is_large(body) else None
    return splice(body, cut.members if cut is not None else orjson.loads(body), {}, ("stream", "stream_options"))


def _span_of_body(raw: bytes) -> tuple[int, int]:
    return [(start, end) for key, _, start, end in members_of(raw) if key == "body"][-1]


def prefix_key(pieces: Iterator[bytes]) -> bytes:
    """Return hashes of ever longer prefixes. Sorting by them puts texts with a long common prefix side by side."""
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


class _WrongLine(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


def _raw_lines(source: IO[bytes], max_bytes: int, step_done: Callable[[], None]) -> Iterator[tuple[int, bytes]]:
    """Yield offset and text of each line. Of a line that is too long, only its start. A byte order mark, which
    spreadsheets and editors write, is no part of the first line. A long line is read in steps."""
    offset = len(BOM_UTF8) if source.read(len(BOM_UTF8)) == BOM_UTF8 else 0
    source.seek(offset)
    while raw := source.readline(_BUFFER_BYTES):
        size, parts = len(raw), [raw]
        while size >= _BUFFER_BYTES and not raw.endswith(b"\n") and (raw := source.readline(_BUFFER_BYTES)):
            if size <= max_bytes + 2:
                parts.append(raw)
            size += len(raw)
            step_done()
        yield offset, b"".join(parts) if len(parts) > 1 else parts[0]
        offset += size


def _line(
    number: int, offset: int, raw: bytes, endpoint: Endpoint, found: Input, seen: set[str], limits: LineLimits
) -> Steps[Line]:
    if len(raw) - raw.endswith(b"\n") - raw.endswith(b"\r\n") > limits.num_bytes:
        raise _WrongLine("invalid_request", f"This line is longer than {limits.num_bytes:,} bytes.")
    request = yield from _parsed(raw, limits.values)
    custom_id, body = request["custom_id"], request["body"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        text = f"custom_id must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters."
        raise _WrongLine("invalid_request", text, "custom_id")
    if custom_id in seen:
        text = (
            f"The custom_id '{custom_id}' for this request is a duplicate of another request. The custom_id"
            " parameter must be unique for each request in a batch."
        )
        raise _WrongLine("duplicate_custom_id", text, "custom_id")
    seen.add(custom_id)
    if request["method"] != "POST":
        raise _WrongLine("invalid_method", f"The method must be POST, not {request['method']!r}.", "method")
    if request["url"] != endpoint.url:
        text = f"The URL {request['url']!r} of this request does not match the batch's endpoint '{endpoint.url}'."
        raise _WrongLine("url_mismatch", text, "url")
    if not isinstance(body, dict):
        raise _WrongLine("invalid_request", "The body must be a JSON object.", "body")
    if (failure := endpoint.check(body)) is not None:
        raise _WrongLine("invalid_request", failure.message, f"body.{failure.param}" if failure.param else "body")
    if raw.count(b":") > pieces.MOST_KEYS:
        _check_keys(raw)
    _check_model(fields.text(body, "model") or "", endpoint, found)
    script = yield from endpoint.script(body)
    line = Line(number, offset, len(raw), custom_id, prefix_key(_pieces(script)))
    if is_large(raw):
        freeing = freed([request])
        del request, body, script
        yield from freeing
    return line


def _parsed(raw: bytes, most_values: int) -> Steps[Mapping[str, Any]]:
    if values.may_be_more(raw, most_values):
        for num in values.counted(raw):
            if num > most_values:
                raise _WrongLine("invalid_request", f"This line has more than {most_values:,} values.")
            yield
    try:
        request = (yield from pieces.parsed(raw))[0] if is_large(raw) else orjson.loads(raw)
    except pieces.OutOfBounds as error:
        raise _WrongLine("invalid_request", f"This line is refused: {error}.") from None
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise _WrongLine("invalid_json_line", _NO_JSON)
    for key in _REQUIRED:
        if key not in request:
            raise _WrongLine("missing_required_parameter", f"Missing required parameter: '{key}'.", key)
    return request


def _check_keys(raw: bytes) -> None:
    """Refuse a line that `body_of` would."""
    try:
        for _ in members_of(raw, _span_of_body(raw)[0]):
            pass
    except Refused as refused:
        raise _WrongLine("invalid_request", refused.failure.message, "body") from None


def _check_model(model: str, endpoint: Endpoint, found: Input) -> None:
    """The first line decides the model of the batch."""
    if found.model is None:
        found.model = model
        if (why := endpoint.wrong_model(model)) is not None:
            raise _WrongLine("model_not_found", why, "body.model")
    elif model != found.model:
        text = f"The model '{model}' of this request does not match '{found.model}' of the requests before it."
        raise _WrongLine("model_mismatch", text, "body.model")


def _pieces(script: Script) -> Iterator[bytes]:
    """Yield the conversation in the order in which most chat templates render it."""
    yield script.system
    yield from script.tools
    yield from script.messages
