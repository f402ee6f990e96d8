"""The store of several gateways: Redis or Valkey. A line is open while the sorted set `open` of its batch has it.

Sets of lines are ordered by the bytes of their members, so each member begins with its place. Every change is one
transaction of the server. All keys share one hash tag, so that they are on one node of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import orjson

from gateway.batches.objects import LIVE, Batch, File, Finished, Line, NotAllowed, Status
from gateway.batches.store import COUNTS, ListPage, about, batch_of, counted, file_of
from gateway.core.errors import ConfigError
from gateway.core.redis import client

Pipeline: TypeAlias = Any
"""A pipeline of redis: commands that become one transaction."""
TIMEOUT_S = 30.0
"""Longest wait for an answer. A batch of 50,000 lines begins in one call."""
PREFIX = "{turngate:batches}"
TALK_S = 32 * 24 * 3600
"""Lifetime of a transcript, longer than any window: a transcript whose batch is over expires by itself."""
_FINISH = """
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[2], 0, ARGV[2])
redis.call('DEL', KEYS[3])
for i = 3, #ARGV, 2 do redis.call('HINCRBY', KEYS[4], ARGV[i], ARGV[i + 1]) end
return 1
"""
_HOLD = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_LET_GO = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisStore:
    """A `Store` that all gateways with the same database share, and a `HoldingStore`."""

    def __init__(self, url: str) -> None:
        """The first call connects. Raises ConfigError without the redis package."""
        try:
            # The types of redis leave open whether answers are bytes or text. They are bytes.
            self._redis: Any = client(url, TIMEOUT_S)
        except ImportError:
            raise ConfigError("batches.redis needs redis: pip install 'turngate[redis]'") from None
        self._finish = self._redis.register_script(_FINISH)
        self._hold = self._redis.register_script(_HOLD)
        self._let_go = self._redis.register_script(_LET_GO)

    async def open(self) -> None:
        """Check that the server answers. Raises OSError."""
        from redis.exceptions import RedisError

        try:
            await self._redis.ping()
        except RedisError as error:
            raise OSError(f"the Redis of the batches does not answer: {error}") from None

    async def close(self) -> None:
        await self._redis.aclose()

    # ---- files

    async def add_file(self, file: File) -> None:
        row = await self._next()
        async with self._redis.pipeline() as pipe:
            self._add_file(pipe, file, row)
            await pipe.execute()

    async def file(self, tenant: str, file_id: str) -> File | None:
        found = await self._redis.get(self._key("file", file_id))
        file = file_of(found) if found else None
        return file if file is not None and file.tenant == tenant else None

    async def files(self, tenant: str, purpose: str | None, page: ListPage) -> list[File]:
        found: list[File] = []
        while len(found) <= page.limit and (ids := await self._ids("files", tenant, page)):
            rows = await self._redis.mget([self._key("file", file_id) for file_id in ids])
            files = [file_of(row) for row in rows if row]
            found += [file for file in files if purpose in (None, file.purpose)]
            page = replace(page, after=ids[-1])
        return found[: page.limit + 1]

    async def remove_file(self, tenant: str, file_id: str) -> bool:
        if await self.file(tenant, file_id) is None:
            return False
        async with self._redis.pipeline() as pipe:
            pipe.delete(self._key("file", file_id))
            pipe.zrem(self._key("files", tenant), file_id)
            pipe.zrem(self._key("contents"), file_id)
            removed, *_ = await pipe.execute()
        return bool(removed)

    async def remove_expired_files(self, now: int) -> None:
        for file_id in _texts(await self._redis.zrangebyscore(self._key("contents"), "-inf", now)):
            if found := await self._redis.get(self._key("file", file_id)):
                await self.remove_file(file_of(found).tenant, file_id)

    async def content_in_use(self) -> set[str]:
        kept = set(_texts(await self._redis.zrange(self._key("contents"), 0, -1)))
        return kept | {batch.input_file_id for batch in await self.live_batches()}

    # ---- batches

    async def add_batch(self, batch: Batch) -> None:
        row = await self._next()
        async with self._redis.pipeline() as pipe:
            pipe.hset(self._key("batch", batch.id), "about", about(batch))
            pipe.zadd(self._key("batches", batch.tenant), {batch.id: row})
            pipe.zadd(self._key("live"), {batch.id: row})
            await pipe.execute()

    async def batch(self, tenant: str, batch_id: str) -> Batch | None:
        batch = _batch(await self._redis.hgetall(self._key("batch", batch_id)))
        return batch if batch is not None and batch.tenant == tenant else None

    async def batches(self, tenant: str, page: ListPage) -> list[Batch]:
        return await self._batches(await self._ids("batches", tenant, page))

    async def live_batches(self) -> list[Batch]:
        return await self._batches(_texts(await self._redis.zrange(self._key("live"), 0, -1)))

    async def move(self, batch_id: str, status: Status, now: int, **changes: Any) -> Batch:
        return await self._change(batch_id, lambda batch, _: batch.moved(status, now, **changes))

    async def close_batch(
        self, batch_id: str, status: Status, now: int, output: File | None, errors: File | None
    ) -> Batch:
        ids = {"output_file_id": output and output.id, "error_file_id": errors and errors.id}
        files = [(file, await self._next()) for file in (output, errors) if file is not None]

        def close(batch: Batch, pipe: Pipeline) -> Batch:
            moved = batch.moved(status, now, **ids)
            for file, row in files:
                self._add_file(pipe, file, row)
            pipe.delete(*(self._key(kind, batch_id) for kind in ("open", "done1", "done0", "holder")))
            return moved

        return await self._change(batch_id, close)

    # ---- lines

    async def begin_batch(self, batch_id: str, lines: Sequence[Line], model: str | None, now: int) -> Batch:
        def begin(batch: Batch, pipe: Pipeline) -> Batch:
            moved = batch.moved(Status.IN_PROGRESS, now, model=model)
            if lines:
                pipe.zadd(self._key("open", batch_id), {_member(line): 0 for line in lines})
            pipe.hset(self._key("batch", batch_id), "total", str(len(lines)))
            return replace(moved, total=len(lines))

        return await self._change(batch_id, begin)

    async def open_lines(self, batch_id: str, after: Line | None, limit: int) -> list[Line]:
        key = self._key("open", batch_id)
        found = await self._redis.zrangebylex(
            key, _behind(None if after is None else _place(after)), "+", 0, limit
        )
        return [_line(member) for member in found]

    async def finish(self, batch_id: str, line: Line, finished: Finished) -> bool:
        keys = [
            self._key("open", batch_id),
            self._key(f"done{int(finished.is_ok)}", batch_id),
            self._talk(batch_id, line),
            self._key("batch", batch_id),
        ]
        counts = [text for item in counted(finished).items() for text in item]
        text = b"%s/%s" % (_number(line.number).encode(), finished.text)
        return bool(await self._finish(keys, [_member(line), text, *counts]))

    async def finished(self, batch_id: str, is_ok: bool, after: int, limit: int) -> list[tuple[int, bytes]]:
        key = self._key(f"done{int(is_ok)}", batch_id)
        found = await self._redis.zrangebylex(key, _behind(None if after < 0 else _number(after)), "+", 0, limit)
        rows = (member.partition(b"/") for member in found)
        return [(int(number, 16), text) for number, _, text in rows]

    # ---- agent runs

    async def append(self, batch_id: str, line: Line, position: int, message: bytes) -> None:
        key = self._talk(batch_id, line)
        async with self._redis.pipeline() as pipe:
            pipe.hsetnx(key, str(position), message)
            pipe.expire(key, TALK_S)
            await pipe.execute()

    async def transcript(self, batch_id: str, line: Line) -> list[tuple[int, bytes]]:
        found = await self._redis.hgetall(self._talk(batch_id, line))
        return sorted((int(position), message) for position, message in found.items())

    # ---- holds

    async def hold(self, batch_id: str, owner: str, hold_s: float) -> bool:
        return bool(await self._hold([self._key("holder", batch_id)], [owner, int(1000 * hold_s)]))

    async def let_go(self, batch_id: str, owner: str) -> None:
        await self._let_go([self._key("holder", batch_id)], [owner])

    # ---- plumbing

    def _key(self, kind: str, name: str = "") -> str:
        return f"{PREFIX}:{kind}:{name}"

    def _talk(self, batch_id: str, line: Line) -> str:
        return self._key("talk", f"{batch_id}:{line.number}")

    async def _next(self) -> int:
        """Return a place behind all others."""
        return int(await self._redis.incr(self._key("rows")))

    def _add_file(self, pipe: Pipeline, file: File, row: int) -> None:
        pipe.set(self._key("file", file.id), orjson.dumps(file))
        pipe.zadd(self._key("files", file.tenant), {file.id: row})
        pipe.zadd(self._key("contents"), {file.id: "+inf" if file.expires_at is None else file.expires_at})

    async def _change(self, batch_id: str, change: Callable[[Batch, Pipeline], Batch]) -> Batch:
        """Change a batch in one transaction, to which `change` adds commands. Calls `change` again when another
        gateway was faster. Raises NotAllowed."""
        from redis.exceptions import WatchError

        key = self._key("batch", batch_id)
        async with self._redis.pipeline() as pipe:
            while True:
                await pipe.watch(key)
                if (batch := _batch(await pipe.hgetall(key))) is None:
                    raise NotAllowed(f"there is no batch '{batch_id}'")
                pipe.multi()
                moved = change(batch, pipe)
                pipe.hset(key, "about", about(moved))
                if moved.status not in LIVE:
                    pipe.zrem(self._key("live"), batch_id)
                try:
                    await pipe.execute()
                except WatchError:
                    continue
                return moved

    async def _ids(self, kind: str, tenant: str, page: ListPage) -> list[str]:
        """Return the ids of a page, and one id more. An unknown `page.after` has none behind it."""
        key, first, num = self._key(kind, tenant), "-inf" if page.is_ascending else "+inf", page.limit + 1
        if page.after is not None:
            row = await self._redis.zscore(key, page.after)
            if row is None:
                return []
            first = f"({int(row)}"
        if page.is_ascending:
            return _texts(await self._redis.zrangebyscore(key, first, "+inf", 0, num))
        return _texts(await self._redis.zrevrangebyscore(key, first, "-inf", 0, num))

    async def _batches(self, ids: Sequence[str]) -> list[Batch]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in ids:
                pipe.hgetall(self._key("batch", batch_id))
            found = await pipe.execute()
        return [batch for row in found if (batch := _batch(row)) is not None]


def _batch(row: dict[bytes, bytes]) -> Batch | None:
    if not row:
        return None
    return batch_of(row[b"about"], [int(row.get(name.encode(), 0)) for name in COUNTS])


def _number(number: int) -> str:
    return f"{number:08x}"


def _place(line: Line) -> str:
    return f"{line.group.hex()}/{_number(line.number)}"


def _behind(place: str | None) -> str:
    """Return the lower bound of the members behind a place: `0` follows the `/` that ends the place."""
    return "-" if place is None else f"[{place}0"


def _member(line: Line) -> str:
    return f"{_place(line)}/{line.offset}/{line.size_bytes}/{line.custom_id}"


def _line(member: bytes) -> Line:
    group, number, offset, size_bytes, custom_id = member.decode().split("/", 4)
    return Line(int(number, 16), int(offset), int(size_bytes), custom_id, bytes.fromhex(group))


def _texts(found: Sequence[bytes]) -> list[str]:
    return [text.decode() for text in found]
