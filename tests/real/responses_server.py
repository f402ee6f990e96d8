"""A scripted Responses API without an engine, which keeps what it is sent: for recording clients."""

import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from tests.real.scripts import Answer, Body, Script, num_turns

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Recorded:
    arrived_s: float
    """Since the server started."""
    took_s: float
    connection: int
    num_on_connection: int
    method: str
    path: str
    status: int
    headers: Headers
    body: bytes
    answer: Answer | None


@dataclass
class ResponsesServer:
    script: Script
    base_url: str = ""
    recorded: list[Recorded] = field(default_factory=list)
    _started_s: float = field(default_factory=time.monotonic)
    _connections: WeakKeyDictionary[Any, list[int]] = field(default_factory=WeakKeyDictionary)
    """Transport -> its number and how many requests it has carried."""
    _connection_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def respond(self, request: web.Request) -> web.StreamResponse:
        arrived_s = time.monotonic()
        if request.transport not in self._connections:
            self._connections[request.transport] = [next(self._connection_numbers), 0]
        self._connections[request.transport][1] += 1
        connection, num_on_connection = self._connections[request.transport]
        raw = await request.read()
        is_generation = request.method == "POST" and request.path == "/v1/responses"
        if is_generation:
            body: Body = json.loads(raw)
            answer = self.script(body, num_turns(body))
            response: web.StreamResponse = await _stream(request, events(answer, body))
        else:
            answer = None
            # Codex' built-in provider asks for a WebSocket; on 426 it falls back at once.
            status = 426 if "Upgrade" in request.headers else 404
            response = web.json_response({"error": {"message": "HTTP only"}}, status=status)
        self.recorded.append(
            Recorded(
                arrived_s - self._started_s,
                time.monotonic() - arrived_s,
                connection,
                num_on_connection,
                request.method,
                request.path,
                response.status,
                tuple(request.headers.items()),
                raw,
                answer,
            )
        )
        return response


async def _stream(request: web.Request, lines: Iterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for line in lines:
        await response.write(line)
    await response.write_eof()
    return response


def events(answer: Answer, body: Body) -> Iterator[bytes]:
    """The stream of one answer, reduced to the events that clients act on."""
    numbers = itertools.count()

    def event(kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, "sequence_number": next(numbers), **fields})
        return f"event: {kind}\ndata: {data}\n\n".encode()

    response = {"id": _new_id("resp"), "object": "response", "model": body["model"], "output": []}
    yield event("response.created", response=response | {"status": "in_progress"})
    items = list(_output_items(answer))
    for index, item in enumerate(items):
        yield event("response.output_item.added", output_index=index, item=item | {"status": "in_progress"})
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            yield event("response.output_text.delta", **place, delta=answer.text)
        yield event("response.output_item.done", output_index=index, item=item)
    usage = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
    completed = response | {"status": "completed", "output": items, "usage": usage}
    yield event("response.completed", response=completed)


def _output_items(answer: Answer) -> Iterator[dict[str, Any]]:
    content = [{"type": "output_text", "text": answer.text, "annotations": []}]
    message = {"type": "message", "id": _new_id("msg"), "role": "assistant", "content": content}
    yield message | {"status": "completed"}
    for call in answer.calls:
        yield {
            "type": "function_call",
            "id": _new_id("fc"),
            "call_id": _new_id("call"),
            "name": call.name,
            "arguments": json.dumps(call.arguments),
            "status": "completed",
            # Codex looks a namespaced tool up under both names.
            **({"namespace": call.namespace} if call.namespace else {}),
        }


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:16]}"


@asynccontextmanager
async def responses_server(script: Script) -> AsyncIterator[ResponsesServer]:
    server = ResponsesServer(script)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", server.respond)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        server.base_url = f"http://{host}:{port}"
        yield server
    finally:
        await runner.cleanup()
