"""What a log line says of an error, and of what libraries log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Literal

import aiohttp
import pytest

from gateway.config.settings import Logging
from gateway.telemetry import logs

SECRET = "sk-do-not-log-this"
Log = Callable[[Literal["text", "json"]], io.StringIO]


@pytest.fixture
def log() -> Iterator[Log]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def begin(style: Literal["text", "json"]) -> io.StringIO:
        stream = io.StringIO()
        logs.setup(Logging(level="debug", format=style), stream)
        return stream

    yield begin
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("text", "rounds=2 notes=a,b time_ms=gate:0.3,decode:91.8"),
        ("json", '"tools":[{"name":"search","status":"ok"}]'),
    ],
)
def test_a_line_of_text_counts_objects_and_a_line_of_json_holds_them(
    style: Literal["text", "json"], expected: str, log: Log
) -> None:
    rounds = [{"replica": "a", "tools": [{"name": "search", "status": "ok"}]}, {"replica": "a", "tools": []}]
    stream = log(style)
    logging.getLogger("turngate.request").info(
        "request",
        extra={"fields": {"rounds": rounds, "notes": ["a", "b"], "time_ms": {"gate": 0.3, "decode": 91.8}}},
    )
    assert expected in stream.getvalue()
    assert "{'" not in stream.getvalue()


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def chained() -> Exception:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(SECRET) from error
    except ValueError:
        return raised(TypeError(SECRET))


def noted() -> Exception:
    error = raised(ValueError(SECRET))
    error.add_note(f"when serializing {SECRET}")
    error.add_note("request 0123")
    return error


QUOTING: dict[str, Callable[[], Exception]] = {
    "a value": lambda: raised(ValueError(f"bad: {SECRET}")),
    "a key": lambda: raised(KeyError(SECRET)),
    "JSON": lambda: raised(json.JSONDecodeError("bad", SECRET, 0)),
    "a chain": chained,
    "a note": noted,
    "a group": lambda: raised(
        ExceptionGroup(SECRET, [raised(ValueError(SECRET)), ExceptionGroup("b", [noted()])])
    ),
    "of aiohttp": lambda: raised(aiohttp.ClientOSError(1, SECRET)),
    "a cycle": lambda: _cycle(),
    "a long chain": lambda: _long_chain(),
}


def _cycle() -> Exception:
    one, other = raised(ValueError(SECRET)), raised(KeyError(SECRET))
    one.__context__, other.__context__ = other, one
    return one


def _long_chain() -> Exception:
    last = raised(ValueError(SECRET))
    for _ in range(3_000):
        error = raised(ValueError(SECRET))
        error.__cause__, last = last, error
    return last


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("kind", QUOTING)
def test_a_stack_trace_shows_where_and_what_kind_and_no_text_that_may_quote_a_request(
    log: Log, style: Literal["text", "json"], kind: str
) -> None:
    stream, error = log(style), QUOTING[kind]()
    logging.getLogger("gateway.path").error("it failed", exc_info=error)
    told = stream.getvalue()
    assert SECRET not in told
    assert type(error).__name__ in told
    assert "test_logs.py" in told
    if kind in ("a note", "a group"):
        assert "request 0123" in told


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), sqlite3.OperationalError("locked"), RuntimeError("a fault of ours")]
)
def test_the_text_of_an_error_about_the_system_is_told(log: Log, error: Exception) -> None:
    stream = log("text")
    logging.getLogger("gateway.path").error("it failed", exc_info=raised(error))
    assert str(error) in stream.getvalue()


async def test_what_asyncio_knows_of_a_lost_error_is_told_in_its_first_line(log: Log) -> None:
    stream, loop = log("text"), asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    future.set_exception(ValueError(SECRET))
    context = {"message": "Task exception was never retrieved", "future": future, "exception": future.exception()}
    loop.default_exception_handler(context)
    loop.default_exception_handler({"message": "It failed", "handle": SECRET})
    told = stream.getvalue()
    assert "Task exception was never retrieved" in told
    assert "ValueError" in told
    assert "It failed" in told
    assert SECRET not in told


def test_what_libraries_say_for_their_own_developers_is_not_logged_at_any_level(log: Log) -> None:
    """botocore writes signed requests there, HTTP clients write headers."""
    stream = log("text")
    for name in ("botocore.auth", "httpcore.http11", "asyncio", "aiohttp.server"):
        logging.getLogger(name).debug("CanonicalRequest:\n%s", SECRET)
        logging.getLogger(name).warning("it is slow\n%s", SECRET)
    logging.getLogger("gateway.watch").debug("ours")
    assert SECRET not in stream.getvalue()
    assert stream.getvalue().count("it is slow") == 4
    assert "ours" in stream.getvalue()
