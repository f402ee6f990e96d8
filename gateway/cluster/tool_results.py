"""Results of tools that gateways share, in Redis or Valkey: one executes a call, the others wait for its result.

Keys: `claim:KEY` (who executes it, expires unless renewed), `told:CLAIM` (its outcome, for those who wait), and
`result:KEY` (its outcome, for as long as the tool may be cached). KEY covers tenant, tool and arguments.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from gateway.cluster.attempts import RedisAttempt, RedisAttempts
from gateway.cluster.membership import BoardGone
from gateway.cluster.outcomes import read, written
from gateway.cluster.redis import asking
from tool_runtime.outcome import Outcome
from tool_runtime.shared import Claimed

CLAIM_MS = 3000
RENEW_S = 1.0
POLL_S = 0.05
TOLD_MS = 10_000
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end"
_LET_GO = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisResults:
    """A `tool_runtime.shared.Shared`."""

    def __init__(self, redis: Any, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._prefix = prefix
        self._attempts = RedisAttempts(redis, prefix, clock)
        self._renew, self._let_go = redis.register_script(_RENEW), redis.register_script(_LET_GO)

    @asynccontextmanager
    async def claimed(self, key: bytes) -> AsyncIterator[Claimed]:
        name, token = key.hex(), secrets.token_hex(16)
        claimed = Claimed()
        try:
            async with asking():
                claimed.outcome = await self._found(name, token)
        except BoardGone:
            yield claimed
            return
        if claimed.outcome is not None:
            yield claimed
            return
        renewing = asyncio.create_task(self._keep_renewing(name, token), name="claim of a tool call")
        try:
            yield claimed
        finally:
            renewing.cancel()
            with suppress(BoardGone):
                await self._end(name, token, claimed)

    def attempt(self, answer: bytes, is_retry: bool = False, lost_s: float | None = None) -> RedisAttempt:
        return self._attempts.attempt(answer, is_retry)

    async def close(self) -> None:
        await self._attempts.close()
        await self._redis.aclose()

    async def _found(self, name: str, token: str) -> Outcome | None:
        """The outcome that is kept, or that another one comes to; None once the claim is this process's."""
        claim = self._key("claim", name)
        while True:
            if (text := await self._redis.get(self._key("result", name))) is not None:
                return read(text)
            if await self._redis.set(claim, token, nx=True, px=CLAIM_MS):
                return None
            other = await self._redis.get(claim)
            if other is None:
                continue
            while True:
                told, now = await self._redis.mget(self._key("told", other.decode()), claim)
                if told is not None:
                    return read(told)
                if now != other:
                    break  # it died, or gave up
                await asyncio.sleep(POLL_S)

    async def _end(self, name: str, token: str, claimed: Claimed) -> None:
        """The outcome is there before the claim is gone: nobody executes the call in between."""
        async with asking(), self._redis.pipeline(transaction=True) as pipe:
            if claimed.kept is not None:
                text = written(claimed.kept)
                pipe.set(self._key("told", token), text, px=TOLD_MS)
                if claimed.ttl_s > 0:
                    pipe.set(self._key("result", name), text, px=max(1, int(1000 * claimed.ttl_s)))
            await self._let_go([self._key("claim", name)], [token], pipe)
            await pipe.execute()

    async def _keep_renewing(self, name: str, token: str) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with suppress(BoardGone):
                async with asking():
                    await self._renew([self._key("claim", name)], [token, CLAIM_MS])

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}:tools:{kind}:{name}"
