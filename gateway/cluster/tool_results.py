"""Tool calls of gateways that share a Redis or Valkey: calls that must run only once, and shared results."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import orjson

from gateway.cluster.membership import BoardGone, redis_call
from tool_runtime.attempts import KEPT_S, MAX_LOST, Claimed, LocalAttempts, key_in
from tool_runtime.types import Outcome, Status


def written(outcome: Outcome) -> bytes:
    return orjson.dumps(asdict(outcome))


def read(text: bytes) -> Outcome:
    row = orjson.loads(text)
    return Outcome(**row | {"status": Status(row["status"])})


# ---- tool calls that may run once only, in Redis or Valkey

ALIVE_MS = 3000
BEAT_S = 1.0
ATTEMPT_POLL_S = 0.05
KEPT_MS = int(1000 * KEPT_S)
NOBODY = "-" * 32
"""Owner of a call whose attempt is lost although its process lives."""

Started: TypeAlias = tuple[str, str]
"""A call that has begun: its key, and its number under that key."""

_START = """
local calls, prefix, me = KEYS[1], ARGV[1], ARGV[2]
redis.call('SET', prefix .. me, ARGV[3], 'PX', ARGV[4])
local all, lost, told, others = redis.call('HGETALL', calls), nil, ARGV[6], {}
for i = 1, #all, 2 do
  local owner = string.sub(all[i + 1], 1, 32)
  local beat = redis.call('GET', prefix .. owner)
  if beat then
    if owner ~= me then others[#others + 1] = owner .. beat end
  elseif not lost or all[i] < lost then
    lost, told = all[i], string.sub(all[i + 1], 33)
  end
end
if lost then
  redis.call('HDEL', calls, lost)
elseif #others > 0 and ARGV[8] == '' then
  return {'', others}
end
redis.call('HSET', calls, ARGV[5], me .. told)
redis.call('PEXPIRE', calls, ARGV[7])
return {lost and told or '', {}}
"""
"""Takes over the first call of a lost attempt. Without one, it records a new call, unless other attempts may be
lost: then it returns them."""
_KNOW = """
local was = redis.call('HGET', KEYS[1], ARGV[1])
if was then redis.call('HSET', KEYS[1], ARGV[1], string.sub(was, 1, 32) .. ARGV[2]) end
"""
_LOSE = """
local was = redis.call('HGET', KEYS[1], ARGV[1])
if was then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. string.sub(was, 33)) end
"""


class RedisAttempts:
    """The calls that this process has started, and those of lost attempts. Owns the heartbeat of this process."""

    def __init__(self, redis: Any, prefix: str, clock: Callable[[], float]) -> None:
        self.recorded, self.unrecorded = LocalAttempts(clock), LocalAttempts(clock)
        """Calls of lost attempts of this process: those that Redis knows, and those that it does not know."""
        self._redis = redis
        self._prefix = prefix
        self._me = secrets.token_hex(16)
        self._beats = itertools.count()
        self._beating: asyncio.Task[None] | None = None
        self._open: set[Started] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._left: dict[Started, bool] = {}
        """Calls that were left while Redis could not be reached, and whether their answers were whole."""
        self._start, self._know, self._lose = map(redis.register_script, (_START, _KNOW, _LOSE))

    def attempt(self, answer: bytes, is_retry: bool, lost_s: float | None = None) -> RedisAttempt:
        """Return a new attempt at an answer. `lost_s` is not used: Redis outlives the process that is asked."""
        return RedisAttempt(self, answer, is_retry)

    async def start_call(self, call: Started, unknown: Outcome) -> Outcome | None:
        """Return the outcome of a call that a lost attempt started, as far as it is known. None: no attempt did,
        and this call may start.

        Waits until an attempt that goes on can be distinguished from one whose process died. Raises BoardGone.
        """
        if self._beating is None:
            self._beating = asyncio.create_task(self._keep_beating(), name="attempts of this process")
        if self._leaving:
            await asyncio.wait(self._leaving)  # the one before may be this client's
        self._open.add(call)
        name, number = call
        alive, seen, all_live = self._key("alive", ""), dict[bytes, bytes](), ""
        while True:
            beat = next(self._beats)
            arguments = [alive, self._me, beat, ALIVE_MS, number, written(unknown), KEPT_MS, all_live]
            async with redis_call():
                outcome, others = await self._start([self._key("calls", name)], arguments)
            if outcome:
                return read(outcome)
            if not others:
                return None
            seen = {other[:32]: other for other in others} | seen
            if all(seen[other[:32]] != other for other in others):
                all_live = "yes"
            else:
                await asyncio.sleep(ATTEMPT_POLL_S)

    async def know(self, call: Started, outcome: Outcome) -> None:
        with suppress(BoardGone):
            async with redis_call():
                await self._know([self._key("calls", call[0])], [call[1], written(outcome)])

    def leave(self, calls: list[Started], is_whole: bool) -> None:
        self._open.difference_update(calls)
        if calls:
            self._left.update(dict.fromkeys(calls, is_whole))
            task = asyncio.create_task(self._leave(), name="end of an attempt")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """End the heartbeat. Calls that are open are lost from now on."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        if self._beating is not None:
            self._beating.cancel()
            with suppress(BoardGone):
                async with redis_call():
                    await self._redis.delete(self._key("alive", self._me))

    async def _leave(self) -> None:
        left, self._left = self._left, {}
        try:
            async with redis_call(), self._redis.pipeline(transaction=False) as pipe:
                for (name, number), is_whole in left.items():
                    if is_whole:
                        pipe.hdel(self._key("calls", name), number)
                    else:
                        await self._lose([self._key("calls", name)], [number, NOBODY], pipe)
                await pipe.execute()
        except BoardGone:
            self._left = dict(list((left | self._left).items())[-MAX_LOST:])

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            with suppress(BoardGone):
                async with redis_call(), self._redis.pipeline(transaction=False) as pipe:
                    pipe.set(self._key("alive", self._me), next(self._beats), px=ALIVE_MS)
                    for name, _ in self._open:
                        pipe.pexpire(self._key("calls", name), KEPT_MS)
                    await pipe.execute()
                if self._left:
                    await self._leave()

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}:tools:{kind}:{name}"


@dataclass(slots=True)
class _Call:
    key: bytes
    started: Started
    outcome: Outcome
    is_recorded: bool = False
    """Whether Redis knows of the call."""


@dataclass(slots=True)
class RedisAttempt:
    """A `tool_runtime.attempts.Attempt` over Redis."""

    attempts: RedisAttempts
    answer: bytes
    is_retry: bool
    calls: list[_Call] = field(default_factory=list)

    @asynccontextmanager
    async def claimed(self, key: bytes, unknown: Outcome) -> AsyncIterator[Claimed]:
        key, attempts = key_in(self.answer, key), self.attempts
        recorded, unrecorded = attempts.recorded.take(key), attempts.unrecorded.take(key)
        started = key.hex(), f"{time.time_ns():020d}{secrets.token_hex(4)}"
        call = _Call(key, started, unrecorded or recorded or unknown)
        self.calls.append(call)
        claimed = Claimed()
        try:
            claimed.outcome = await attempts.start_call(started, unknown) or unrecorded
            call.is_recorded = True
        except BoardGone:
            claimed.outcome = unrecorded or recorded or (unknown if self.is_retry else None)
        call.outcome = claimed.outcome or unknown
        yield claimed
        if claimed.kept is not None:
            call.outcome = claimed.kept
            await attempts.know(started, claimed.kept)

    def ended(self, is_whole: bool) -> None:
        calls, self.calls = self.calls, []
        for call in calls if not is_whole else ():
            (self.attempts.recorded if call.is_recorded else self.attempts.unrecorded).lose(call.key, call.outcome)
        self.attempts.leave([call.started for call in calls], is_whole)


# ---- results of tools that gateways share, in Redis or Valkey

CLAIM_MS = 3000
RENEW_S = 1.0
POLL_S = 0.05
TOLD_MS = 10_000
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end"
_LET_GO = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisResults:
    """A `tool_runtime.attempts.SharedExecutions`."""

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
            async with redis_call():
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
        """Return the outcome that is kept, or that another process reaches. None: this process has the claim."""
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
                outcome, now = await self._redis.mget(self._key("told", other.decode()), claim)
                if outcome is not None:
                    return read(outcome)
                if now != other:
                    break  # it died, or gave up
                await asyncio.sleep(POLL_S)

    async def _end(self, name: str, token: str, claimed: Claimed) -> None:
        """Publish the outcome before the claim is gone, so that no process executes the call in between."""
        async with redis_call(), self._redis.pipeline(transaction=True) as pipe:
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
                async with redis_call():
                    await self._renew([self._key("claim", name)], [token, CLAIM_MS])

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}:tools:{kind}:{name}"
