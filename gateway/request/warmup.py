"""Warm-ups on the wire: a session's last call again, for one token, so that its engine computes the prompt."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import orjson

from gateway.config.live_settings import RequestSettings
from gateway.core.splice import splice
from gateway.core.transport import HeaderList, Timeouts, UpstreamCut, taken
from gateway.dialects.base import Dialect
from gateway.engines.monitor import RunningEngine
from gateway.request.engine_errors import EngineFailed
from gateway.request.model_call import Forward, ModelCall
from gateway.request.upstream_request import Call
from policies.types import SessionId, value

MAX_ANSWER_BYTES = 2**20
WITHIN_S = 60.0
OWN_BYTES = 1024
"""About what a kept call takes beside its body and its headers."""
HEADER_BYTES = 200
"""About what a header takes beside its text."""
_BOUND_KEYS = {"chat": "max_tokens", "completions": "max_tokens", "responses": "max_output_tokens"}
"""Where a body has no bound of its own. `/v1/messages` always has one."""
_DROPPED = ("stream_options", "min_tokens")


@value
class _Kept:
    engine: RunningEngine
    dialect: Dialect
    url: str
    headers: HeaderList
    body: bytes

    @property
    def num_bytes(self) -> int:
        headers = sum(HEADER_BYTES + len(name) + len(value) for name, value in self.headers)
        return OWN_BYTES + len(self.url) + headers + len(self.body)


class WarmUps:
    """Keeps the last call of each session, as many as fit `max_bytes`, in memory only."""

    def __init__(self, max_bytes: int, forward: Forward, settings: Callable[[], RequestSettings]) -> None:
        self._max_bytes, self._forward, self._settings = max_bytes, forward, settings
        self._kept: OrderedDict[SessionId, _Kept] = OrderedDict()
        self._num_bytes = 0

    def keep(self, session_id: SessionId, dialect: Dialect, call: ModelCall) -> None:
        """A call of the session was answered; it takes the place of the one before."""
        sent = call.sent
        if sent is None or sent.body is None:
            return
        if (old := self._kept.pop(session_id, None)) is not None:
            self._num_bytes -= old.num_bytes
        new = self._kept[session_id] = _Kept(call.engine, dialect, sent.url, sent.headers, sent.body)
        self._num_bytes += new.num_bytes
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._kept.popitem(last=False)[1].num_bytes

    async def ask(self, session_id: SessionId) -> bool:
        """Whether the engine has computed the session's last prompt; False where it is not known any more."""
        kept = self._kept.get(session_id)
        if kept is None:
            return False
        try:
            async with asyncio.timeout(WITHIN_S):
                return await _computed(self._forward, kept, self._settings().timeouts)
        except (EngineFailed, UpstreamCut, TimeoutError):
            return False  # the next turn computes it, as it would have


async def _computed(forward: Forward, kept: _Kept, timeouts: Timeouts) -> bool:
    """Whether the engine answered. Raises EngineFailed, UpstreamCut."""
    call = Call("POST", kept.url, kept.headers, _for_one_token(kept))
    reply = await forward.send(kept.engine, call, timeouts)
    await taken(reply, MAX_ANSWER_BYTES)
    return reply.status == 200


def _for_one_token(kept: _Kept) -> bytes:
    body = orjson.loads(kept.body)
    bound = kept.dialect.max_tokens_key(body) or _BOUND_KEYS.get(kept.dialect.name, "max_tokens")
    return splice(kept.body, body, {bound: 1, "stream": False}, [key for key in _DROPPED if key in body])
