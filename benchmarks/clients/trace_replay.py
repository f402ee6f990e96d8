"""Recorded requests fed to a gateway's Identity, with their answers at the recorded times."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gateway.access.keys import Caller
from gateway.dialects import BY_PATH
from gateway.exchange import Exchange, Payload, Recognition, Timings
from gateway.sessions.identity import Identity
from tests.traces import TracedRequest, client_names, read_trace

RECORDED_CHARS = 60
ID_HEADERS = (
    *("x-session-id", "x-session-affinity", "x-opencode-session", "x-parent-session-id"),
    *("session-id", "thread-id", "x-codex-parent-thread-id"),
)
BROKEN = ("cut", "eof", "err")
"""Faults after which status 200 is no complete answer."""


@cache
def whole_answers() -> dict[str, str]:
    """The recordings keep the first 60 characters of an answer. The rest is in the histories that clients sent
    later; an answer that reads on in two ways there stays cut."""
    texts_of: dict[str, set[str]] = {}
    for client in client_names():
        for request in read_trace(client):
            for message in request.body.get("messages", ()):
                text = message.get("content")
                if message["role"] == "assistant" and isinstance(text, str) and len(text) >= RECORDED_CHARS:
                    texts_of.setdefault(text[:RECORDED_CHARS], set()).add(text)
    return {head: texts.pop() for head, texts in texts_of.items() if len(texts) == 1}


@dataclass
class HeadersOnly:
    """A request of which only the headers matter."""

    headers: Mapping[str, str]
    method: str = "POST"
    path: str = ""
    query: str = ""
    remote: str = ""
    header_list: Sequence[tuple[str, str]] = ()

    async def read(self, limit_bytes: int) -> bytes:
        return b""

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        yield b""


class TraceReplay:
    """Replays traced requests into one Identity, telling it answers at the recorded times."""

    def __init__(self, *, with_headers: bool, with_replies: bool = True) -> None:
        self.identity = Identity(secret=b"benchmark")
        self._with_headers = with_headers
        self._with_replies = with_replies
        self._running: list[tuple[float, Exchange, TracedRequest]] = []
        self._now = 0.0
        self._num_sent = 0

    def send(self, request: TracedRequest, tenant: str = "", again: int = 0) -> Recognition:
        """Recordings of one file have clocks of their own: when time goes back, everything has been answered.

        `again`: which time the recording is sent; a client gives each run new ids of sessions.
        """
        went_back = request.arrived_s < self._now
        self._now = request.arrived_s
        self.settle(None if went_back else self._now)
        exchange = self._exchange(request, tenant, again)
        recognition = self.identity.recognise(exchange, exchange.dialect.script(request.body), self._now)
        self._running.append((request.arrived_s + request.took_s, exchange, request))
        return recognition

    def settle(self, until: float | None = None) -> None:
        """Tell the answers that have ended by then; None: all."""
        for entry in sorted(self._running, key=lambda entry: entry[0]):
            ended_at, exchange, request = entry
            if until is None or ended_at <= until:
                self._running.remove(entry)
                is_complete = request.status == 200 and request.fault not in BROKEN
                self.identity.answered(exchange, is_complete, self._now)

    def _exchange(self, request: TracedRequest, tenant: str, again: int) -> Exchange:
        kept = ("x-stainless-",) if not self._with_headers else ("",)
        headers = {name.lower(): value for name, value in request.headers if name.lower().startswith(kept)}
        if again:
            headers |= {name: f"{headers[name]}-{again}" for name in ID_HEADERS if name in headers}
        body = dict(request.body)
        if not self._with_headers:
            body.pop("prompt_cache_key", None)
        self._num_sent += 1
        exchange = Exchange(
            id=str(self._num_sent),
            request=HeadersOnly(headers),
            dialect=BY_PATH[request.path],
            timings=Timings(self._now),
            payload=Payload(body=body, requested_model=request.body["model"]),
            caller=Caller(tenant, may_prioritise=False),
        )
        if self._with_replies:
            # The recorded answers have text but not the ids of their calls.
            head = (request.reply or {}).get("text") or ""
            exchange.reply.written.append(whole_answers().get(head, head))
        return exchange
