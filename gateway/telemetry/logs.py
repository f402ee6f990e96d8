"""Log lines on standard error: key=value text for people, or one JSON object each for machines.

The content of requests is not logged at any level. Libraries quote text that they cannot read, so that their
errors are shortened.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, TextIO

import orjson

from gateway.config.settings import Logging
from gateway.core.fields import excerpt, visible

PLAIN = re.compile(r"[^\s\"'=]+")
OUR_NOTE = "request "
"""Opens the note with which the path names the request in an error."""
_OURS = frozenset(("gateway", "policies", "tool_runtime", "batch_agent", "turngate"))
_ABOUT_THE_SYSTEM = (OSError, RuntimeError, MemoryError, AttributeError, NameError, ImportError, AssertionError)
"""Errors whose text is logged, since it is about the process. Others may quote a request."""
_NEVER_QUOTING, _QUOTING = frozenset(("sqlite3", "redis")), frozenset(("aiohttp",))
"""Libraries whose errors never, or always, may quote a request."""
MAX_ERRORS = 20
"""Of one stack trace: causes of an error, and members of a group."""
_LEFT_OUT = "(its text is not logged, since it may quote a request)"


def setup(section: Logging, stream: TextIO | None = None) -> None:
    """Give the process its one log handler, replacing those that it had."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(lambda record: record.levelno > logging.DEBUG or _is_ours(record))
    handler.setFormatter(JsonLines() if section.format == "json" else TextLines())
    logging.basicConfig(level=section.level.upper(), handlers=[handler], force=True)


class TextLines(logging.Formatter):
    """`2026-11-21T05:30:00.123Z info answered id=... session=...`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record).items())
        line = visible(f"{_time(record)} {record.levelname.lower()} {_message(record)} {fields}".rstrip())
        error = _error(record)
        return line if error is None else f"{line}\n{indent(stack_of(error), '  ')}"


class JsonLines(logging.Formatter):
    """The same as an object with `time`, `level`, `message`, and the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname.lower(), "message": _message(record)}
        if (error := _error(record)) is not None:
            head["exception"] = stack_of(error)
        return visible(orjson.dumps(head | _fields(record), default=str).decode())


def stack_of(error: BaseException) -> str:
    """Return the stack and kind of an error and its causes; its text where that is no secret."""
    return "\n".join(_stack(error, set())).rstrip("\n")


def _stack(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen and len(seen) < MAX_ERRORS:
        yield from _stack(cause, seen)
        yield f"\n{'Which led to' if error.__cause__ else 'Then'}:\n"
    yield "Traceback (most recent call last):"
    yield "".join(traceback.format_tb(error.__traceback__)).rstrip("\n")
    yield f"{type(error).__module__}.{type(error).__qualname__}: {_text_of(error)}"
    yield from (note for note in getattr(error, "__notes__", ()) if note.startswith(OUR_NOTE))
    for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        if id(one) not in seen and len(seen) < MAX_ERRORS:
            yield indent("\n".join(_stack(one, seen)), "  | ")


def _text_of(error: BaseException) -> str:
    library = type(error).__module__.partition(".")[0]
    is_shown = library in _NEVER_QUOTING or (isinstance(error, _ABOUT_THE_SYSTEM) and library not in _QUOTING)
    return visible(str(error)) if is_shown else _LEFT_OUT


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] in _OURS


def _message(record: logging.LogRecord) -> str:
    """Return the message, of a library its first line: further lines of asyncio show the content of tasks."""
    text = record.getMessage()
    return text if _is_ours(record) else excerpt(text.partition("\n")[0])


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: Any) -> str:
    """Return a value for a line of text. A list of objects, such as the rounds of an answer, is its length: the
    receipt has them all."""
    if isinstance(value, dict):
        value = [f"{key}:{item}" for key, item in value.items()]
    if isinstance(value, list):
        has_objects = any(isinstance(item, dict | list) for item in value)
        value = len(value) if has_objects else ",".join(map(str, value))
    text = str(value)
    return text if PLAIN.fullmatch(text) else orjson.dumps(text).decode()
