"""What is fuzzed, as functions of bytes: each raises where a law is broken, and does nothing else.

The first bytes choose; the rest is text of a client, an engine, or an operator. `path` runs a whole gateway on a
loop of its own, with an engine that answers whatever the input says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from gateway.app import App
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core import sse
from gateway.core.errors import ConfigError
from gateway.core.json_edit import splice
from gateway.core.reply import Reply
from gateway.core.sse import EventTooLong
from gateway.core.transport import (
    Body,
    Handler,
    HeaderList,
    Timeouts,
    UpstreamCut,
    UpstreamRefused,
    UpstreamReply,
    by_name,
)
from gateway.dialects import BY_PATH
from gateway.engines.kinds import adapter_of
from gateway.request import engine_errors
from gateway.request.inprocess import InProcessRequest, InProcessResponder
from gateway.request.stream_relay import StreamRelay
from gateway.request.upstream_request import Call
from gateway.sessions import claims
from gateway.transport import Transport

PATHS = tuple(BY_PATH)
KINDS = ("vllm", "sglang", "dynamo", "openai")
_SEPARATOR = b"\0"
STEP_S = 0.02
"""By which the gateway's timers come nearer with each look at them: what it waits out takes no time here."""
_CALL = Call("POST", "http://e", (), b"")
_EVENT_LIMIT_BYTES = 4096


def sse_splitter(data: bytes) -> None:
    """The events and the rest, joined, are what went in, however it was cut."""
    step, data = 1 + (data[0] if data else 0) % 16, data[1:]
    splitter, events = sse.EventSplitter(_EVENT_LIMIT_BYTES), []
    try:
        for at in range(0, len(data), step):
            events += splitter.feed(data[at : at + step])
    except EventTooLong:
        return
    assert b"".join(events) + splitter.rest() == data
    whole = sse.EventSplitter(_EVENT_LIMIT_BYTES)
    with contextlib.suppress(EventTooLong):
        assert whole.feed(data) == events or data.endswith(b"\r")
    for event in events:
        payload = sse.data_of(event)
        assert payload is None or len(payload) <= len(event)


def relay(data: bytes) -> None:
    """Nothing that an engine streams breaks the relay, which neither adds nor reorders bytes."""
    choice, step, data = (*data[:2], data[2:]) if len(data) > 1 else (0, 0, b"")
    dialect, engine = BY_PATH[PATHS[choice % len(PATHS)]], adapter_of(KINDS[choice % len(KINDS)])
    chunks = (
        data.split(_SEPARATOR)
        if step % 2
        else [data[n : n + step // 2 + 1] for n in range(0, len(data), step // 2 + 1)]
    )
    whole = b"".join(chunks)
    stream, sent = StreamRelay(dialect, engine, Reply(), _CALL), b""
    for chunk in chunks:
        sent += stream.feed(chunk)
        if stream.failure is not None:
            break
    else:
        sent += stream.rest()
        assert sent == whole
    assert whole.startswith(sent)


def bodies(data: bytes) -> None:
    """A body is refused, or read: by the checks, as a conversation, and to splice into."""
    path, raw = PATHS[(data[0] if data else 0) % len(PATHS)], data[1:]
    dialect = BY_PATH[path]
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return
    if not isinstance(body, dict) or dialect.check(body) is not None:
        return
    script = dialect.script(body)
    assert all(isinstance(message, bytes) for message in script.messages)
    dialect.max_tokens(body)
    dialect.stateful_id(body)
    put = {"model": "m", "stream_options": {"include_usage": True}, **dialect.asking_for_usage(body)}
    spliced = orjson.loads(splice(raw, body, put, ("priority",)))
    assert spliced == {key: value for key, value in body.items() if key != "priority"} | put


def headers(data: bytes) -> None:
    """Any header of a client is a hint, or nothing."""
    names = ("x-session-id", "thread-id", "session-id", "x-turngate-session", "x-dynamo-session-id", "retry-after")
    values = data.decode("utf-8", "surrogateescape").split("\n")
    given = by_name([*zip(names, values, strict=False)])
    claim = claims.read_claim(given)
    assert claim.session is None or 0 < len(claim.session) <= 255
    claims.says_retry(given)
    for name in names:
        number = claims.whole_number(given, name)
        assert number is None or number >= 0


def errors(data: bytes) -> None:
    """Every error body of an engine can be passed to a client in its dialect."""
    choice, body = (data[0] if data else 0), data[1:]
    dialect, status = BY_PATH[PATHS[choice % len(PATHS)]], (400, 404, 422, 429, 500, 503, 529, 418)[choice % 8]
    engine_errors.message_of(body)
    with contextlib.suppress(orjson.JSONDecodeError):
        parsed = orjson.loads(body)
        if isinstance(parsed, dict) and (failure := dialect.is_error(parsed)) is not None:
            failed = engine_errors.in_stream(dialect, failure)
            orjson.loads(dialect.error_body(failed.failure))
            assert failed.failure.status >= 400, status


def pages(data: bytes) -> None:
    """Whatever an engine's pages hold, they are read or refused with a ValueError, which its watch reports."""
    engine = adapter_of(KINDS[(data[0] if data else 0) % len(KINDS)])
    metrics, _, models = data[1:].partition(_SEPARATOR)
    texts = {path: metrics.decode(errors="replace") for path in (*engine.metrics_paths, *engine.probe_paths)}
    texts["/v1/models"] = models.decode(errors="replace")
    with contextlib.suppress(Exception):  # `Watch.poll` reports whatever it is
        engine.parse_report(texts)
        engine.learn(texts, engine.abilities())


def configuration(data: bytes) -> None:
    """A configuration is taken, or refused with the place of each fault."""
    path = _folder() / "turngate.yaml"
    path.write_bytes(data)
    try:
        settings = loading.load({}, path, {})
        loading.addresses(settings)
        loading.dump(settings)
    except ConfigError as refused:
        if not str(refused):
            raise AssertionError("the refusal has no text") from refused


_FOLDERS: list[TemporaryDirectory[str]] = []


def _folder() -> Path:
    if not _FOLDERS:
        _FOLDERS.append(TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    return Path(_FOLDERS[0].name)


class _Reply:
    """A `transport.UpstreamReply` from bytes."""

    def __init__(self, status: int, content_type: str, chunks: list[bytes]) -> None:
        self.status = status
        self.header_list: HeaderList = [("Content-Type", content_type)]
        self.headers: Mapping[str, str] = by_name(self.header_list)
        self._chunks = chunks

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if chunk == b"CUT":
                raise UpstreamCut("cut")
            yield chunk

    async def read(self, limit_bytes: int) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    def close(self, *, reuse: bool) -> None: ...


class _ScriptedUpstream:
    """A `transport.Upstream` that gives the answers of a list."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    async def call(
        self, method: str, url: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> UpstreamReply:
        if url.endswith("/v1/models"):
            return _Reply(200, "application/json", [b'{"data":[{"id":"m","max_model_len":4096}]}'])
        if method == "GET":
            return _Reply(404, "application/json", [b"{}"])
        if not self.answers:
            return _Reply(200, "application/json", [b'{"choices":[{"index":0,"finish_reason":"stop"}]}'])
        kind, *chunks = self.answers.pop(0).split(b"\1")
        first = kind[0] if kind else 0
        if first == 1:
            raise UpstreamRefused("refused")
        status = (200, 200, 200, 200, 400, 404, 429, 500, 503, 529)[first % 10]
        return _Reply(status, "text/event-stream" if first & 1 else "application/json", chunks)

    async def close(self) -> None: ...


class _Server:
    """A `transport.Server` without a socket."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def start(self, host: str, port: int, **more: Any) -> int:
        return 1

    async def stop(self, grace_s: float) -> None: ...


class FuzzedGateway:
    """A whole gateway between a request and an answer that are both bytes. `more`: of its settings, section by
    section in the place of those that it has here."""

    def __init__(self, more: Mapping[str, Any] | None = None) -> None:
        logging.disable(logging.CRITICAL)
        self._loop = asyncio.new_event_loop()
        self._engine = _ScriptedUpstream()
        self._ahead_s = 0.0
        tree = {
            "engines": ["vllm://e1:1", "vllm://e2:1"],
            "probing": {"hints": False, "interval_s": 3600},
            "identity": {"max_sessions": 200},
            "receipts": {"max_kept": 200},
            "tools": {"use": [{"use": "benchmarks.soak.tools:build"}]},
        }
        self._app = App(Settings.model_validate(tree | dict(more or {})))
        self._app._transport = Transport("fuzz", _Server, lambda: self._engine)
        self._loop.run_until_complete(self._app.start())
        self._loop.time = lambda: time.monotonic() + self._ahead_s  # type: ignore[method-assign]

    def __call__(self, data: bytes) -> None:
        """No input is a fault of the gateway, hangs, or leaves anything behind."""
        path, (raw, *answers) = PATHS[(data[0] if data else 0) % len(PATHS)], data[1:].split(_SEPARATOR)
        self.ask(path, raw, answers)

    def ask(self, path: str, raw: bytes, answers: list[bytes]) -> InProcessResponder:
        """`answers` of the engine, one per call: a byte for the status, then chunks, each behind a byte 1."""
        self._engine.answers = answers
        return self._loop.run_until_complete(self._ask(InProcessRequest(path, [("Host", "h")], raw)))

    def close(self) -> None:
        self._loop.run_until_complete(self._app.stop())
        self._loop.close()

    async def _ask(self, request: InProcessRequest) -> InProcessResponder:
        responder = InProcessResponder()
        asking = asyncio.ensure_future(self._app.parts.handler.handle(request, responder))
        while not asking.done():
            await asyncio.sleep(0)
            self._ahead_s += STEP_S
        with contextlib.suppress(UpstreamCut):
            asking.result()
        view = self._app.parts.gate.replica_view()
        assert not sum(replica.slots_used for replica in view.replicas), "a slot is held"
        assert not sum(view.waiting.values()), "a turn waits"
        assert responder.status, "nothing was answered"
        return responder


TARGETS: dict[str, Callable[[], Callable[[bytes], None]]] = {
    "sse": lambda: sse_splitter,
    "relay": lambda: relay,
    "bodies": lambda: bodies,
    "headers": lambda: headers,
    "errors": lambda: errors,
    "pages": lambda: pages,
    "configuration": lambda: configuration,
    "path": FuzzedGateway,
}
