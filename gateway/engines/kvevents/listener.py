"""Subscribes to the KV events of engines and tells what they mean: evicted prefixes, cleared caches.

The only file that imports zmq. Each source of an engine that is followed has one task and one socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping

import zmq
import zmq.asyncio

from gateway.engines.base import KvEventSource
from gateway.engines.kvevents.index import BlockIndex
from gateway.engines.kvevents.sequence import Heard, Sequence
from gateway.engines.kvevents.wire import decode
from gateway.engines.monitor import RunningEngine
from policies.types import CacheLost, Fact, ReplicaId

LOG = logging.getLogger(__name__)

REPLAY_S = 5.0
OPEN_AGAIN_S = 5.0
"""A port that is taken now may be that of a gateway that is about to stop."""
_NUMBER_BYTES = 8
_END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
_MOST_QUEUED = 100_000
"""Batches that wait for us, as many as vLLM keeps; more are dropped and show as a gap."""

Evicted = Callable[[ReplicaId, int, float | None], None]
"""(replica, blocks, horizon in seconds): metrics."""


class KvEventListener:
    """Owns the sockets and their tasks."""

    def __init__(self, tell: Callable[[Fact], None], evicted: Evicted) -> None:
        self._context = zmq.asyncio.Context()
        self._tell = tell
        self._evicted = evicted
        self._tasks: dict[RunningEngine, dict[asyncio.Task[None], Source]] = {}

    async def follow(self, engines: Collection[RunningEngine]) -> None:
        """Hear these from now on, and no others. A source that cannot be opened is logged, shown by `turngate
        doctor` and tried again; the others are heard."""
        for gone in self._tasks.keys() - set(engines):
            await self._leave(self._tasks.pop(gone))
        for engine in engines:
            if engine not in self._tasks:
                self._tasks[engine] = dict(self._heard(engine, source) for source in engine.address.kv_events)

    async def stop(self) -> None:
        await self.follow(())
        self._context.destroy(linger=0)

    def _heard(self, engine: RunningEngine, told: KvEventSource) -> tuple[asyncio.Task[None], Source]:
        source = Source(engine, told, self._context, self._tell, self._evicted)
        return asyncio.create_task(source.run(source.open()), name=f"KV events {source.url}"), source

    async def _leave(self, sources: Mapping[asyncio.Task[None], Source]) -> None:
        for task in sources:
            task.cancel()
        await asyncio.gather(*sources, return_exceptions=True)
        for source in sources.values():
            source.close()


class Source:
    """One publisher: one engine process or one data-parallel rank of it."""

    def __init__(
        self,
        engine: RunningEngine,
        source: KvEventSource,
        context: zmq.asyncio.Context,
        tell: Callable[[Fact], None],
        evicted: Evicted,
    ) -> None:
        self.url = source.url
        self.index = BlockIndex()
        self._replay_url = source.replay_url
        self._engine = engine
        self._context = context
        self._tell = tell
        self._evicted = evicted
        self._sequence = Sequence()
        self._socket = context.socket(zmq.SUB)

    def open(self) -> bool:
        """Bind or connect. False, and said why, when that is not possible."""
        self._socket.set_hwm(_MOST_QUEUED)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            if listens(self.url):
                self._socket.bind(self.url.removeprefix("@"))
            else:
                self._socket.connect(self.url)
        except zmq.ZMQError as error:
            problem = f"{self.url}: {error}"
            if problem != self._engine.kv_events.problem:
                LOG.error("engine %s: KV events of %s cannot be heard: %s", self._engine.name, self.url, error)
            self._engine.kv_events.problem = problem
            return False
        return True

    def close(self) -> None:
        """Leave the port, or the publisher."""
        self._socket.close(linger=0)

    async def run(self, is_open: bool) -> None:
        """Until cancelled. A message that cannot be read costs what was known, not the listener."""
        if not is_open:
            await self._open_again()
        while True:
            frames = await self._socket.recv_multipart()
            try:
                await self._hear(int.from_bytes(frames[-2], "big"), frames[-1])
            except Exception as error:  # an event that no release sent so far must not end the listening
                self._engine.kv_events.problem = f"{self.url}: {error}"
                LOG.exception("engine %s: a KV event cannot be read", self._engine.name)
                self.index.clear()

    async def _open_again(self) -> None:
        is_open = False
        while not is_open:
            await asyncio.sleep(OPEN_AGAIN_S)
            is_open = self.open()
        if self._engine.kv_events.problem.startswith(self.url):  # not that of another source
            self._engine.kv_events.problem = ""
        LOG.info("engine %s: KV events of %s are heard now", self._engine.name, self.url)

    async def _hear(self, number: int, payload: bytes) -> None:
        heard = self._sequence.hear(number)
        if heard is Heard.RESTART:
            self.index.clear()
            if (replica_id := self._replica_id(decode(payload).rank)) is not None:
                self._tell(CacheLost(replica_id, None))
            heard = self._sequence.restart(number)
        if heard is Heard.GAP:
            await self._fill_gap(number)
        if heard is not Heard.OLD and number >= self._sequence.next:
            self._take(number, payload)

    async def _fill_gap(self, number: int) -> None:
        """Ask for what is missing before `number`; where it is lost, what was known may be wrong by now."""
        try:
            async with asyncio.timeout(REPLAY_S):
                async for replayed, payload in self._replay(self._sequence.next):
                    if replayed > self._sequence.next:
                        self.index.clear()
                    if replayed >= self._sequence.next:
                        self._take(replayed, payload)
        except TimeoutError:
            LOG.warning("engine %s: %s replays nothing", self._engine.name, self._replay_url)
        if number > self._sequence.next:
            self.index.clear()

    async def _replay(self, first: int) -> AsyncIterator[tuple[int, bytes]]:
        if self._replay_url is None:
            return
        with self._context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self._replay_url)
            await socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
            while (frames := await socket.recv_multipart())[-2] != _END:
                yield int.from_bytes(frames[-2], "big"), frames[-1]

    def _take(self, number: int, payload: bytes) -> None:
        self._sequence.take(number)
        batch = decode(payload)
        losses = self.index.apply(batch.events, batch.at)
        self._engine.kv_events.num_batches += 1
        replica_id = self._replica_id(batch.rank)
        if losses.num_blocks:
            self._evicted(replica_id or self._engine.name, losses.num_blocks, self.index.horizon_s())
        if replica_id is not None and losses.is_cleared:
            self._tell(CacheLost(replica_id, None))
        if replica_id is not None and losses.kept_tokens:
            self._tell(CacheLost(replica_id, losses.kept_tokens))

    def _replica_id(self, rank: int | None) -> ReplicaId | None:
        """The pool of a rank. None: not known, as of a worker behind a Dynamo frontend with several."""
        pools = [pool.name for pool in self._engine.report.pools]
        if len(pools) == 1:
            return self._engine.replica_id(pools[0])
        return self._engine.replica_id(str(rank)) if str(rank) in pools else None


def listens(url: str) -> bool:
    """Whether we bind: the side with the `*` does, as in vLLM; `@` says so for a certain address."""
    return "*" in url or url.startswith("@")
