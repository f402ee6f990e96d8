"""Log lines on standard error: key=value text for people, or one JSON object each for machines."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, TextIO

import orjson

from gateway.config.settings import Logging
from gateway.core.excerpt import visible

PLAIN = re.compile(r"[^\s\"'=]+")


def setup(section: Logging, stream: TextIO | None = None) -> None:
    """Give the process its one log handler, replacing those that it had."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if section.format == "json" else TextLines())
    logging.basicConfig(level=section.level.upper(), handlers=[handler], force=True)


class TextLines(logging.Formatter):
    """`2026-11-21T05:30:00.123Z info answered id=... session=...`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record).items())
        line = visible(f"{_time(record)} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip())
        return f"{line}\n{indent(self.formatException(record.exc_info), '  ')}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """The same as an object with `time`, `level`, `message`, and the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            head["exception"] = self.formatException(record.exc_info)
        return visible(orjson.dumps(head | _fields(record), default=str).decode())


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if PLAIN.fullmatch(text) else orjson.dumps(text).decode()
