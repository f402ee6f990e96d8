"""Warm-ups on the wire: a session's last call again, for one token, so that its engine computes the prompt."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import chain
from typing import Any

import orjson

from gateway.config.live_settings import RequestSettings
from gateway.core.json_edit import splice
from gateway.core.transport import Timeouts, UpstreamCut, UpstreamRefused, taken
from gateway.dialects.base import Dialect
from gateway.engines.client import EngineClient
from gateway.engines.monitor import Monitor
from gateway.engines.poller import RunningEngine
from gateway.request.engine_errors import EngineFailed
from gateway.request.model_call import Forward, ModelCall
from gateway.request.upstream_request import Call
from policies.types import Fact, Release, SessionId, WarmedUp, WarmUp, value

MAX_ANSWER_BYTES = 2**20
WITHIN_S = 60.0
OWN_BYTES = 1024
"""Approximate memory of a kept call beside its body and its headers."""
HEADER_BYTES = 120
"""Approximate memory of a header beside its text."""
_DROPPED = ("stream_options", "min_tokens")


@value
class _Kept:
    engine: RunningEngine
    dialect: Dialect
    url: str
    headers: tuple[str, ...]
    """Names and values in turn: the garbage collector passes over a tuple of texts, and looks at each pair."""
    body: bytes
    num_bytes: int

    @staticmethod
    def of(engine: RunningEngine, dialect: Dialect, sent: Call, body: bytes) -> _Kept:
        headers = tuple(chain.from_iterable(sent.headers))
        headers_bytes = HEADER_BYTES * len(sent.headers) + sum(map(len, headers))
        num_bytes = OWN_BYTES + len(sent.url) + headers_bytes + len(body)
        return _Kept(engine, dialect, sent.url, headers, body, num_bytes)


class WarmUps:
    """Keeps the last call of each session, as many as fit `max_bytes`, in memory only."""

    def __init__(self, max_bytes: int, forward: Forward, settings: Callable[[], RequestSettings]) -> None:
        self._max_bytes, self._forward, self._settings = max_bytes, forward, settings
        self._kept: OrderedDict[SessionId, _Kept] = OrderedDict()
        self._num_bytes = 0

    def keep(self, session_id: SessionId, dialect: Dialect, call: ModelCall) -> None:
        """Keep an answered call of the session, instead of the one before."""
        sent = call.sent
        if sent is None or sent.body is None:
            return
        if (old := self._kept.pop(session_id, None)) is not None:
            self._num_bytes -= old.num_bytes
        new = self._kept[session_id] = _Kept.of(call.engine, dialect, sent, sent.body)
        self._num_bytes += new.num_bytes
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._kept.popitem(last=False)[1].num_bytes

    def forget_session(self, _tenant: str, session_id: SessionId) -> None:
        if (old := self._kept.pop(session_id, None)) is not None:
            self._num_bytes -= old.num_bytes

    async def ask(self, session_id: SessionId) -> bool:
        """Return whether the engine computed the session's last prompt; False where it is no longer known."""
        kept = self._kept.get(session_id)
        if kept is None:
            return False
        try:
            async with asyncio.timeout(WITHIN_S):
                return await _computed(self._forward, kept, self._settings().timeouts)
        except (EngineFailed, UpstreamCut, TimeoutError):
            return False  # the next turn computes it, as without a warm-up


async def _computed(forward: Forward, kept: _Kept, timeouts: Timeouts) -> bool:
    """Return whether the engine answered. Raises EngineFailed, UpstreamCut."""
    headers = list(zip(kept.headers[::2], kept.headers[1::2], strict=True))
    call = Call("POST", kept.url, headers, _for_one_token(kept))
    reply = await forward.send(kept.engine, call, timeouts)
    await taken(reply, MAX_ANSWER_BYTES)
    return reply.status == 200


def _for_one_token(kept: _Kept) -> bytes:
    body = orjson.loads(kept.body)
    bound = kept.dialect.max_tokens_key(body) or kept.dialect.bound_key
    return splice(kept.body, body, {bound: 1, "stream": False}, [key for key in _DROPPED if key in body])


# ---- calls to engines that no client waits for

MOST = 256
"""At once; a further release is left out, and the engine evicts by age."""


class BackgroundCalls:
    """Owns the calls under way."""

    def __init__(
        self, warm_ups: WarmUps, monitor: Monitor, asking: EngineClient, tell: Callable[[Fact], None]
    ) -> None:
        self._warm_ups, self._monitor, self._asking, self._tell = warm_ups, monitor, asking, tell
        self._under_way: set[asyncio.Task[None]] = set()

    def carry_out(self, decision: WarmUp | Release) -> None:
        """Carry out a decision that is about no turn."""
        if isinstance(decision, WarmUp):
            self._run(self._warm_up(decision))
        elif len(self._under_way) < MOST:
            self._release(decision)

    def _release(self, decision: Release) -> None:
        engine = self._monitor.target(decision.replica_id).engine
        closing = engine.adapter.closing(decision.session_id, engine.abilities)
        if closing is not None:
            self._run(self._close(decision, *closing))

    async def stop(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _run(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _warm_up(self, warm_up: WarmUp) -> None:
        is_done = False
        try:
            is_done = await self._warm_ups.ask(warm_up.session_id)
        finally:
            self._tell(WarmedUp(warm_up.session_id, is_done))

    async def _close(self, release: Release, path: str, body: dict[str, str]) -> None:
        address = self._monitor.target(release.replica_id).engine.address
        with suppress(UpstreamRefused, UpstreamCut):  # an engine that is gone keeps nothing
            await self._asking.post(address, path, [], orjson.dumps(body))
