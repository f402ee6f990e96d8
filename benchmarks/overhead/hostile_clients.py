"""Clients that send one hostile request again and again, and one that looks at `/ready` meanwhile.

    python -m benchmarks.overhead.hostile_clients PORT ENGINE_PORT KIND NAME SECONDS BYTES

It says `made` once its bodies are, begins with a line on its standard input, and ends with a line of JSON.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from benchmarks.overhead.hostile_engine import repeats
from tests.fuzz.shapes import (
    ANSWERS,
    CHAT,
    FORMS,
    LINES,
    PURPOSE,
    REQUESTS,
    SHORT,
    STREAMS,
    file_field,
    form,
    raw_of,
)

AT_ONCE = 4
PROBERS, PROBE_GAP_S = 20, 0.1
"""Each waits for its own answer only, so that one that comes late delays no other look."""
SMALLEST = 1 / 64
"""Of the repeats that fill a body: fewer are not tried where the gateway refuses the body."""
_FORM_TYPE = "multipart/form-data; boundary=edge"
_STATUS = re.compile(rb"HTTP/1.1 (\d{3})")
_ID = re.compile(rb'"id":"([^"]+)"')
CALM = "calm"


@dataclass(frozen=True, slots=True)
class HostileRequest:
    path: str
    body: bytes
    content_type: str = "application/json"
    is_batch: bool = False
    """Whether the answer is the input file of a batch, which is created next."""

    def wire(self) -> bytes:
        head = f"POST {self.path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
        return f"{head}Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n\r\n".encode()


@dataclass(slots=True)
class Seen:
    """What one run saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    """0: no whole answer, as of a request that was under way at the end."""
    ready_us: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def sized(made: Callable[[int], bytes], most_bytes: int, share: float = 1.0) -> bytes:
    num = repeats(lambda num: len(made(num)), most_bytes)
    return made(max(1, int(num * share)))


def requests_of(kind: str, name: str, most_bytes: int, share: float = 1.0) -> HostileRequest:
    """The request of one shape, as large as it may be, or a share of that."""
    if kind == "request":
        _, path, body = REQUESTS[name]
        return HostileRequest(path, sized(lambda num: raw_of(body(num), stream=True), most_bytes, share))
    if kind in ("stream", "answer", "error"):
        path = STREAMS[name][1] if kind == "stream" else ANSWERS[name][1] if kind == "answer" else CHAT
        return HostileRequest(path, raw_of(SHORT[path], stream=kind == "stream"))
    if kind == "form":
        return HostileRequest("/v1/files", sized(FORMS[name][1], most_bytes, share), _FORM_TYPE)
    # A fault at the end: such a batch is read in whole, and none of its lines is sent.
    lines = sized(LINES[name][1], most_bytes, share) + b"\n[\n"
    return HostileRequest("/v1/files", form([PURPOSE, file_field(lines)]), _FORM_TYPE, is_batch=True)


def send(port: int, request: HostileRequest, until: float) -> tuple[str, bytes]:
    """Return the status and the beginning of the answer, read to its end. One that is under way at the end of the
    round is left."""
    left_s = until - time.monotonic()
    if left_s <= 0:
        return "0", b""
    with socket.create_connection(("127.0.0.1", port), timeout=left_s) as connection:
        connection.sendall(request.wire())
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before it was read
            connection.sendall(request.body)
        start = b""
        while data := connection.recv(2**20):
            if len(start) < 4096:
                start += data
            if time.monotonic() >= until:
                return "0", start
        status = _STATUS.match(start)
        return (status[1].decode() if status else "0"), start


def again_and_again(port: int, requests: list[HostileRequest], until: float, seen: Seen) -> None:
    number = 0
    while time.monotonic() < until:
        request = requests[number % len(requests)]
        number += 1
        try:
            status, start = send(port, request, until)
            if request.is_batch and status == "200" and (found := _ID.search(start)) is not None:
                asked: dict[str, Any] = {"input_file_id": found[1].decode(), "endpoint": CHAT}
                batch = orjson.dumps(asked | {"completion_window": "24h"})
                status, _ = send(port, HostileRequest("/v1/batches", batch), until)
        except (OSError, TimeoutError) as error:
            status = "0"
            if time.monotonic() < until:
                seen.faults.append(repr(error))
        seen.statuses[status] += 1


def probe(port: int, begin_at: float, until: float, seen: Seen) -> None:
    """A look each PROBE_GAP_S."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while begin_at < until:
            time.sleep(max(0.0, begin_at - time.monotonic()))
            begun_at = time.monotonic()
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: h\r\n\r\n")
            if not connection.recv(65_536).startswith(b"HTTP/1.1 200"):
                seen.faults.append("/ready was not 200")
            answered_at = time.monotonic()
            seen.ready_us.append(int((answered_at - begun_at) * 1e6))
            begin_at = max(begin_at + PROBE_GAP_S, answered_at)


def made(port: int, kind: str, name: str, most_bytes: int) -> list[HostileRequest]:
    """The request as large as it may be, and where the gateway refuses that, also the largest that it takes."""
    whole = requests_of(kind, name, most_bytes)
    found = [whole]
    if kind != "request" or send(port, whole, time.monotonic() + 60)[0] == "200":
        return found
    share = 0.5
    while share >= SMALLEST:
        smaller = requests_of(kind, name, most_bytes, share)
        if send(port, smaller, time.monotonic() + 60)[0] == "200":
            return [*found, smaller]
        share /= 2
    return found


def main() -> None:
    port, engine_port, kind, name, seconds, most_bytes = sys.argv[1:]
    send(
        int(engine_port),
        HostileRequest("/shape", orjson.dumps([kind, name, int(most_bytes)])),
        time.monotonic() + 60,
    )
    requests = made(int(port), kind, name, int(most_bytes)) if kind != CALM else []
    print("made", flush=True)
    sys.stdin.readline()
    seen, until = Seen(), time.monotonic() + float(seconds)
    threads = []
    for number in range(PROBERS):
        first_at = time.monotonic() + number * PROBE_GAP_S / PROBERS
        threads.append(threading.Thread(target=probe, args=(int(port), first_at, until, seen)))
    for _ in range(AT_ONCE if requests else 0):
        threads.append(threading.Thread(target=again_and_again, args=(int(port), requests, until, seen)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sizes = [len(request.body) for request in requests]
    result = {"sizes": sizes, "statuses": seen.statuses, "ready_us": seen.ready_us, "faults": seen.faults[:5]}
    print(orjson.dumps(result).decode(), flush=True)


if __name__ == "__main__":
    main()
