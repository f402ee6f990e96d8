"""How long one request holds the event loop, step by step.

    python -m benchmarks.overhead.steps [--sizes MB,MB] [--shapes A,B] [--dialects A,B] [--hostile PATTERN]

A whole gateway answers large bodies of four formats, over its own listener. The CPU time of its thread is read
around each call of the event loop, and inside it around each step of the path. Each body is sent as a first turn,
and again with two messages more; a hostile one of `tests/fuzz/shapes.py` is sent twice. `--shapes '' --hostile .`
takes all of those and no other.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from benchmarks.overhead.bodies import text
from benchmarks.overhead.hostile_clients import sized
from benchmarks.results import command_parser, write
from gateway.app import App
from gateway.cli.process import give_memory_back, spare_collections
from gateway.config.settings import Settings
from gateway.core.fields import Json
from tests.fuzz.shapes import NAMES, REQUESTS, raw_of

MIB = 2**20
SIZES_MIB = (1, 4, 8, 16, 30)
HOSTILE_SIZES_MIB = (8, 30)
HOSTILE = (
    "escapes of a text|emojis of a text|tags of a template|spaces between|and images"
    "|chat: (properties of a tool|keys of metadata|the model again|biases|arguments)"
)
"""Those that held the loop longest, before they were read in steps or refused."""
MOST_MS = {8: 20.0, 32: 50.0}
"""Longest hold by the size of the body in MiB, up to it."""
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
}
MOST_MESSAGES, MOST_TOOLS = 9_990, 1_000
"""Just below the defaults of `limits.messages` and `limits.tools`."""
MOST_VALUES = 990_000
"""Just below the default of `limits.values`."""
PARTS, PROPERTIES = 20_000, 10
"""Of one message, and of the schema of one tool."""
STEPS = (
    ("read", "gateway.transport.fast.request", "RequestReader.feed"),
    ("join", "gateway.transport.fast.request", "FastRequest._take"),
    ("parse", "gateway.request.handler", "parse_body"),
    ("script", "gateway.sessions.identity", "Identity.script"),
    ("recognise", "gateway.sessions.identity", "Identity.recognise"),
    ("prefix breaks", "gateway.sessions.prefix_breaks", "PrefixBreaks.recognised"),
    ("gate", "gateway.request.gate", "Gate.tell"),
    ("call", "gateway.request.model_call", "turn_call"),
    ("send", "asyncio.selector_events", "_SelectorSocketTransport.write"),
    ("send", "asyncio.selector_events", "_SelectorSocketTransport.writelines"),
    ("receipt", "gateway.telemetry.observer", "Observer.finished"),
)
"""Synchronous functions of the path, and their names in the table. What is in none of them is `other`."""


# ---- the bodies


def messages(shape: str, size: int, more: int) -> list[Json]:
    """Messages of about `size` bytes, and `more` short ones behind them."""
    found: list[Json]
    num = {"few": 8, "many": MOST_MESSAGES, "tools": 2}.get(shape, 1)
    own = size // num if shape in ("few", "many") else 100
    found = [{"role": _role(at), "content": text(max(8, own - 40), str(at))} for at in range(num)]
    if shape == "parts":
        found = [
            {"role": "user", "content": [_text(text(max(8, size // PARTS - 40), str(at))) for at in range(PARTS)]}
        ]
    elif shape == "mixed":
        found = [{"role": "user", "content": [_text("a"), _image(max(8, size * 2 // PARTS - 90))] * (PARTS // 2)}]
    elif shape == "image":
        found = [{"role": "user", "content": [_text("a"), _image(size)]}]
    return [*found, *({"role": _role(num + at), "content": f"message {at}"} for at in range(more))]


def _role(at: int) -> str:
    return ("user", "assistant")[at % 2]


def _text(value: str) -> Json:
    return {"type": "text", "text": value}


def _image(size: int) -> Json:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * (size // 4)}}


def body(dialect: str, shape: str, size: int, more: int = 0) -> bytes | None:
    """Return a body of about `size` bytes; None where the format has no such shape."""
    size = size * 9 // 10  # what is quoted takes the rest
    head: Json = {"model": "alias", "max_tokens": 16}
    if dialect == "completions":
        prompt: Any
        if shape == "parts" and size // 7 < MOST_VALUES:
            prompt = [*range(100_000, 100_000 + size // 7 + 2 * more)]
        elif shape in ("few", "many"):
            found = messages(shape, size, more)
            prompt = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>" for one in found)
        else:
            return None
        return orjson.dumps(head | {"prompt": prompt})
    given: Json = {"input" if dialect == "responses" else "messages": messages(shape, size, more)}
    if shape == "tools":
        given["tools"] = [_tool(dialect, at, size // MOST_TOOLS) for at in range(MOST_TOOLS)]
    return orjson.dumps(head | given)


def hostile_body(name: str, size: int) -> bytes:
    made = REQUESTS[name][2]
    return sized(lambda num: raw_of(made(num)), size)


def _tool(dialect: str, number: int, size: int) -> Json:
    """One tool with a schema of PROPERTIES entries."""
    words = text(max(8, size // (PROPERTIES + 2) - 60), str(number))
    properties = {f"value_{at}": {"type": "string", "description": words} for at in range(PROPERTIES)}
    about = {"name": f"tool_{number}", "description": words}
    schema = {"type": "object", "properties": properties}
    if dialect == "messages":
        return {**about, "input_schema": schema}
    if dialect == "responses":
        return {"type": "function", **about, "parameters": schema}
    return {"type": "function", "function": {**about, "parameters": schema}}


SHAPES = ("few", "many", "tools", "parts", "mixed", "image")


# ---- what holds the loop


@dataclass(slots=True)
class Holds:
    """CPU milliseconds of the thread of the loop, by call of the loop and by step within it."""

    longest_ms: float = 0.0
    longest: dict[str, float] = field(default_factory=dict)
    """Steps of the longest one."""
    total_ms: float = 0.0
    num_calls: int = 0
    by_step: dict[str, float] = field(default_factory=dict)
    """Longest hold of each step."""
    _now: dict[str, float] = field(default_factory=dict)
    _inner_ms: float = 0.0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        outer_ms, self._inner_ms, begun = self._inner_ms, 0.0, time.thread_time()
        try:
            yield
        finally:
            took_ms = (time.thread_time() - begun) * 1e3
            self._now[name] = self._now.get(name, 0.0) + took_ms - self._inner_ms
            self._inner_ms = outer_ms + took_ms

    def run(self, call: Callable[[], object]) -> None:
        """Make one call of the loop."""
        self._now, self._inner_ms = {}, 0.0
        with self.step("other"):
            call()
        took_ms = self._inner_ms
        self.total_ms += took_ms
        self.num_calls += 1
        for name, ms in self._now.items():
            self.by_step[name] = max(ms, self.by_step.get(name, 0.0))
        if took_ms > self.longest_ms:
            self.longest_ms, self.longest = took_ms, self._now


class Watched:
    """Reads the CPU time of the loop's calls from now on."""

    def __init__(self) -> None:
        self.holds = Holds()
        handles: Any = asyncio.events.Handle
        run = handles._run

        def measured(handle: Any) -> None:
            self.holds.run(lambda: run(handle))

        handles._run = measured
        for name, module, path in STEPS:
            self._watch(name, import_module(module), path)

    def _watch(self, name: str, owner: Any, path: str) -> None:
        *outer, last = path.split(".")
        for one in outer:
            owner = getattr(owner, one)
        inner = getattr(owner, last)

        def measured(*args: Any, **more: Any) -> Any:
            with self.holds.step(name):
                return inner(*args, **more)

        setattr(owner, last, measured)


# ---- the engine and the client, on threads of their own

ANSWER = orjson.dumps(
    {
        "id": "a",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }
)
MODELS = orjson.dumps({"object": "list", "data": [{"id": "fake", "owned_by": "vllm", "max_model_len": 10**8}]})


def engine() -> int:
    """Start an engine that answers every call at once. Return its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        while True:
            threading.Thread(target=_answer_calls, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    return int(listener.getsockname()[1])


def _answer_calls(connection: socket.socket) -> None:
    while head := _message(connection):
        answer, status = (ANSWER if head.startswith(b"POST") else MODELS), "200 OK"
        if head.startswith(b"GET") and b"/v1/models" not in head.split(b"\r\n")[0]:
            answer, status = b"{}", "404 Not Found"
        line = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n\r\n"
        connection.sendall(line.encode() + answer)


def _message(connection: socket.socket) -> bytes:
    """Read one message. Return its head; empty: the connection has ended."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65_536)
        if not piece:
            return b""
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    length = next(
        (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
    )
    left, buffer = length - len(rest), bytearray(MIB)
    while left > 0:
        left -= connection.recv_into(buffer)
    return head


def asked(port: int, path: str, raw: bytes) -> bytes:
    """Send one request. Return the head of its answer."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        return _message(connection)


# ---- one gateway, all cells


@dataclass(frozen=True, slots=True)
class Cell:
    dialect: str
    shape: str
    size_mib: int
    turn: str
    is_hostile: bool = False

    def body(self) -> bytes | None:
        """None where the format has no such shape."""
        if self.is_hostile:
            return hostile_body(f"{self.dialect}: {self.shape}", self.size_mib * MIB)
        return body(self.dialect, self.shape, self.size_mib * MIB, 2 if self.turn == "next" else 0)


@dataclass(frozen=True, slots=True)
class Measured:
    holds: Holds
    status: int


async def measured(wanted: list[Cell]) -> dict[Cell, Measured]:
    """Return what is seen of each cell, by a gateway that has answered a small request of each format."""
    tree = {
        "engines": [f"vllm://127.0.0.1:{engine()}"],
        "listen": {"port": 0},
        "probing": {"hints": False, "interval_s": 3600},
        "logging": {"level": "warning"},
        "transport": "fast",
        "models": {"aliases": {"alias": "fake", "m": "fake"}},
    }
    app = App(Settings.model_validate(tree))
    found: dict[Cell, Measured] = {}
    await app.start()
    try:
        give_memory_back()
        spare_collections()
        for dialect, path in PATHS.items():
            await asyncio.to_thread(asked, app.port, path, body(dialect, "few", 4_096) or b"")
        watched = Watched()
        for cell in wanted:
            raw = await asyncio.to_thread(cell.body)
            if raw is None:
                continue
            watched.holds = Holds()
            head = await asyncio.to_thread(asked, app.port, PATHS[cell.dialect], raw)
            status = int(head.split(b" ", 2)[1])
            assert status in (200, 400), head
            await asyncio.sleep(0.05)
            found[cell], watched.holds = Measured(watched.holds, status), Holds()
            print(cell, status, _line(found[cell].holds), file=sys.stderr, flush=True)
    finally:
        await app.stop()
    return found


def _line(holds: Holds) -> str:
    steps = sorted(holds.longest.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} {ms:.1f}" for name, ms in steps if ms >= 1)
    return f"{holds.longest_ms:.1f} ms ({named}), {holds.total_ms:.0f} ms in {holds.num_calls} calls"


# ---- the tables


def table(found: dict[Cell, Measured], before_ms: Mapping[Cell, float]) -> str:
    sizes = sorted({cell.size_mib for cell in found})
    rows = list(dict.fromkeys((cell.dialect, cell.shape, cell.turn, cell.is_hostile) for cell in found))
    head = ["format | body | turn", *(f"{size} MiB" for size in sizes), "longest step", "CPU ms in all"]
    about = (
        "Longest hold of the event loop, CPU ms (in brackets: before). Bold: above 20 up to 8 MiB, or 50."
        " 400: it was refused:\n"
    )
    lines = [about, f"| {' | '.join(head)} |"]
    lines.append("|" + " --- |" * (len(sizes) + 5))
    for dialect, shape, turn, is_hostile in rows:
        cells = [found.get(Cell(dialect, shape, size, turn, is_hostile)) for size in sizes]
        values = [
            _marked(size, cell, before_ms.get(Cell(dialect, shape, size, turn, is_hostile)))
            for size, cell in zip(sizes, cells, strict=True)
        ]
        last = cells[-1]
        step = max(last.holds.longest.items(), key=lambda item: item[1])[0] if last else ""
        total = f"{last.holds.total_ms:.0f}" if last else ""
        lines.append(f"| {' | '.join([dialect, shape, turn, *values, step, total])} |")
    names = sorted({name for one in found.values() for name in one.holds.by_step})
    lines += ["\nLongest hold of each step, over all bodies of a size, CPU ms:\n"]
    lines += [f"| step | {' | '.join(f'{size} MiB' for size in sizes)} |", "|" + " --- |" * (len(sizes) + 1)]
    for name in names:
        longest = [
            max(one.holds.by_step.get(name, 0.0) for c, one in found.items() if c.size_mib == s) for s in sizes
        ]
        lines.append(f"| {name} | {' | '.join(f'{ms:.1f}' for ms in longest)} |")
    return "\n".join(lines)


def _marked(size_mib: int, one: Measured | None, before_ms: float | None) -> str:
    if one is None:
        return ""
    most = next(ms for upto, ms in MOST_MS.items() if size_mib <= upto)
    shown = f"{one.holds.longest_ms:.1f}"
    marked = f"**{shown}**" if one.holds.longest_ms > most else shown
    if one.status != 200:
        marked += f" {one.status}"
    return marked if before_ms is None else f"{marked} ({before_ms:.0f})"


def _read_ms(path: Path | None) -> dict[Cell, float]:
    """Return the longest holds of an earlier run."""
    rows = orjson.loads(path.read_bytes())["data"] if path is not None else ()
    keys = ("dialect", "shape", "size_mib", "turn", "is_hostile")
    return {Cell(*(row.get(key, False) for key in keys)): row["longest_ms"] for row in rows}


def _row(cell: Cell, one: Measured) -> Json:
    return {
        "dialect": cell.dialect,
        "shape": cell.shape,
        "size_mib": cell.size_mib,
        "turn": cell.turn,
        "is_hostile": cell.is_hostile,
        "status": one.status,
        "longest_ms": round(one.holds.longest_ms, 2),
        "total_ms": round(one.holds.total_ms, 1),
        "steps": {name: round(ms, 2) for name, ms in one.holds.by_step.items()},
    }


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES_MIB)), help="in MiB")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--dialects", default=",".join(PATHS))
    parser.add_argument("--before", type=Path, help="data of an earlier run, shown in brackets", metavar="FILE")
    parser.add_argument("--name", default="steps", help="of the result files")
    parser.add_argument("--hostile", default=HOSTILE, help="those whose name has a match", metavar="PATTERN")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    wanted = [
        Cell(dialect, shape, size, turn)
        for dialect in options.dialects.split(",")
        for shape in filter(None, options.shapes.split(","))
        for size in sizes
        for turn in ("first", "next")
    ]
    wanted += [
        Cell(NAMES[REQUESTS[name][1]], name.partition(": ")[2], size, turn, True)
        for name in REQUESTS
        if options.hostile and re.search(options.hostile, name)
        for size in sorted(set(sizes) & set(HOSTILE_SIZES_MIB)) or sizes
        for turn in ("first", "again")
    ]
    found = asyncio.run(measured(wanted))
    shown = table(found, _read_ms(options.before))
    print(shown)
    data = [_row(cell, one) for cell, one in found.items()]
    write(options.results, options.name, shown, data)


if __name__ == "__main__":
    main()
