"""Listens to what engines publish of their KV caches, in the place of inference. Needs the extra `kvevents`."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

import msgspec
import zmq
import zmq.asyncio

from gateway.engines.base import KvEventSource
from gateway.engines.poller import RunningEngine
from policies.types import CacheLost, Fact, ReplicaId, SessionId

# ---- whether a stream of numbered batches is whole: a publisher counts from 0, and drops some when it is too fast


class HeardBatch(Enum):
    """The place of a live batch among those before it."""

    NEXT = auto()
    GAP = auto()  # batches before it are missing
    OLD = auto()  # already applied, from the replay
    RESTART = auto()  # the count began again: another process, with an empty cache


class BatchSequence:
    """The batches of one publisher. Each one that is applied, live or replayed, is passed to `mark_applied`."""

    def __init__(self) -> None:
        self.next = 0
        """Number of the first batch that is missing."""
        self._next_live = 0

    def classify(self, number: int) -> HeardBatch:
        """Place a live batch that arrived."""
        if number < self._next_live:
            return HeardBatch.RESTART
        self._next_live = number + 1
        if number < self.next:
            return HeardBatch.OLD
        return HeardBatch.NEXT if number == self.next else HeardBatch.GAP

    def mark_applied(self, number: int) -> None:
        self.next = number + 1

    def restart(self, number: int) -> HeardBatch:
        """Begin again at that batch, after RESTART."""
        self.next = self._next_live = 0
        return self.classify(number)


# ---- the KV events of vLLM as bytes

Hash: TypeAlias = int | bytes
DEVICE = "GPU"
"""Where a block is when an event does not say; other tiers are CPU, STORAGE and names of connectors."""


_UNREAD = msgspec.Raw()


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """A run of blocks was cached, each the child of the one before it, the first one of `parent_block_hash`."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None = None
    token_ids: msgspec.Raw = _UNREAD
    block_size: int = 0
    """Tokens per block. 0: a tier that names its blocks without describing them."""
    lora_id: msgspec.Raw = _UNREAD
    medium: str | None = None
    lora_name: msgspec.Raw = _UNREAD
    extra_keys: msgspec.Raw = _UNREAD
    group_idx: int | None = None
    kv_cache_spec_kind: msgspec.Raw = _UNREAD
    kv_cache_spec_sliding_window: msgspec.Raw = _UNREAD
    locality: msgspec.Raw = _UNREAD
    ownership: msgspec.Raw = _UNREAD
    session_id: str | None = None
    """The `X-Session-ID` of the request that computed them (vLLM; seen on 0.32)."""


class Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Blocks were evicted from one tier."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The whole cache was reset."""


class _StoredArray(Stored, array_like=True, tag="BlockStored", gc=False):
    pass


class _RemovedArray(Removed, array_like=True, tag="BlockRemoved", gc=False):
    pass


class _ClearedArray(Cleared, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


Event: TypeAlias = Stored | Removed | Cleared


class EventBatch(msgspec.Struct, frozen=True):
    """What one engine step changed, in order."""

    at: float
    """Wall time of the engine, in seconds."""
    events: list[Event]
    rank: int | None = None
    """Data-parallel rank."""


_KINDS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
_BATCHES = msgspec.msgpack.Decoder(_Batch)
_MAPS = msgspec.msgpack.Decoder(Stored | Removed | Cleared)
_ARRAYS = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def decode(payload: bytes) -> EventBatch:
    """Read a batch. Events of unknown kinds are left out. Raises ValueError for what is no batch, and for an event
    of a known kind that cannot be read."""
    try:
        batch = _BATCHES.decode(payload)
        events = [event for raw in batch.events if (event := _event(raw)) is not None]
    except msgspec.DecodeError as error:
        raise ValueError(f"not a batch of KV events: {error}") from None
    return EventBatch(batch.ts, events, batch.data_parallel_rank)


def _event(raw: msgspec.Raw) -> Event | None:
    first = memoryview(raw)[0]
    is_map = 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)  # by msgpack's specification
    try:
        event: Event = _MAPS.decode(raw) if is_map else _ARRAYS.decode(raw)
    except msgspec.ValidationError:
        decoded = msgspec.msgpack.decode(raw)
        is_list = isinstance(decoded, list) and decoded
        kind = decoded.get("type") if isinstance(decoded, dict) else decoded[0] if is_list else None
        if kind in _KINDS:
            raise
        return None
    return event


# ---- which blocks one KV pool holds: what was evicted, after how long, and of which sessions

STEP_TOKENS = 128
"""Losses of a session are reported in steps of this size: about one block of the gateway's own."""
MAX_SAMPLES = 256
"""Evicted chains from which the horizon is computed."""
MAX_SESSIONS = 20_000
QUANTILE = 0.1


@dataclass(slots=True, eq=False)
class _Block:
    hash: Hash
    parent: _Block | None
    end_tokens: int | None
    """Length of the prefix up to its end. None: its beginning was stored before the listener was there."""
    used_at: float
    tiers: tuple[str, ...] = ()
    """The tiers that hold it. Empty, though it has children: another copy was evicted, or children outlived it."""
    num_children: int = 0
    sessions: set[SessionId] | None = None
    """Sessions whose cached prefix ends here."""


@dataclass(slots=True, eq=False)
class _End:
    """The end of a session's cached prefix."""

    block: _Block
    reported_tokens: int


@dataclass(slots=True)
class Losses:
    """What sessions lost, or regained, by a batch of events."""

    num_blocks: int = 0
    """Blocks that left their last tier."""
    kept_tokens: dict[SessionId, int] = field(default_factory=dict)
    """Cached length of sessions that lost a part of their prefix, regained one that was reported as lost, or are
    new."""
    is_cleared: bool = False


class BlockIndex:
    """The blocks of one publisher. Sessions are those that engines name: the MAX_SESSIONS most recent ones."""

    def __init__(self) -> None:
        self._blocks: dict[Hash, _Block] = {}
        self._ends: OrderedDict[SessionId, _End] = OrderedDict()
        self._whole_tokens: dict[SessionId, int] = {}
        """Length before the loss, of sessions whose loss was reported and not regained since."""
        self._idle_s: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._last_parent: _Block | None = None
        """Of the block that was evicted last."""

    def __len__(self) -> int:
        return len(self._blocks)

    def cached_tokens(self, session_id: SessionId) -> int:
        """Length of the session's longest prefix that is cached; 0 when none is known."""
        end = self._ends.get(session_id)
        return 0 if end is None else end.block.end_tokens or 0

    def horizon_s(self) -> float | None:
        """The time for which nine in ten evicted chains had been idle at least. None before the first eviction."""
        idle_s = sorted(self._idle_s)
        return idle_s[int(QUANTILE * len(idle_s))] if idle_s else None

    def forget_session(self, session_id: SessionId) -> None:
        if (end := self._ends.pop(session_id, None)) is not None:
            _leave(end.block, session_id)
        self._whole_tokens.pop(session_id, None)

    def clear(self) -> None:
        self._blocks.clear()
        self._ends.clear()
        self._whole_tokens.clear()

    def apply(self, events: Iterable[Event], at: float) -> Losses:
        """Apply the events of one engine step, at its own time."""
        losses = Losses()
        for event in events:
            match event:
                case Cleared():
                    self.clear()
                    losses = Losses(losses.num_blocks, is_cleared=True)
                case Stored() if not event.group_idx:  # further groups hold the same tokens in other layers
                    self._stored(event, at, losses)
                case Removed() if not event.group_idx:
                    for block_hash in event.block_hashes:
                        self._removed(block_hash, event.medium or DEVICE, at, losses)
        return losses

    def _stored(self, event: Stored, at: float, losses: Losses) -> None:
        tier = event.medium or DEVICE
        parent = None if event.parent_block_hash is None else self._blocks.get(event.parent_block_hash)
        is_rooted = event.parent_block_hash is None
        for block_hash in event.block_hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                if not event.block_size:
                    continue  # a slower tier names a block that no event described
                end_tokens = _end(parent, event.block_size, is_rooted)
                block = self._blocks[block_hash] = _Block(block_hash, parent, end_tokens, at)
                if parent is not None:
                    parent.num_children += 1
            block.used_at = at
            if tier not in block.tiers:
                block.tiers = (*block.tiers, tier)
            parent, is_rooted = block, False
        if event.session_id and parent is not None and parent.end_tokens is not None:
            self._extend(event.session_id, parent, parent.end_tokens, losses)

    def _extend(self, session_id: SessionId, block: _Block, end_tokens: int, losses: Losses) -> None:
        """Move the end of a session to its longest chain: side requests under its name are short."""
        end = self._ends.get(session_id)
        if end is None:
            self._ends[session_id] = _End(block, end_tokens)
            losses.kept_tokens[session_id] = end_tokens
            if len(self._ends) > MAX_SESSIONS:
                oldest, dropped = self._ends.popitem(last=False)
                _leave(dropped.block, oldest)
        elif end_tokens >= (end.block.end_tokens or 0):
            _leave(end.block, session_id)
            end.block, end.reported_tokens = block, end_tokens
            self._ends.move_to_end(session_id)
        else:
            return
        _arrive(block, {session_id})
        if (whole_tokens := self._whole_tokens.get(session_id)) is not None:
            losses.kept_tokens[session_id] = end_tokens
            if end_tokens >= whole_tokens:
                del self._whole_tokens[session_id]

    def _removed(self, block_hash: Hash, tier: str, at: float, losses: Losses) -> None:
        block = self._blocks.get(block_hash)
        if block is None:
            losses.num_blocks += tier == DEVICE
            return
        block.tiers = tuple(other for other in block.tiers if other != tier)
        while block is not None and not block.tiers and not block.num_children:
            self._drop(block, at, losses)
            block = block.parent

    def _drop(self, block: _Block, at: float, losses: Losses) -> None:
        del self._blocks[block.hash]
        losses.num_blocks += 1
        if block is not self._last_parent:  # one sample per chain, not per block
            self._idle_s.append(max(0.0, at - block.used_at))
        parent = self._last_parent = block.parent
        if parent is not None:
            parent.num_children -= 1
            parent.used_at = max(parent.used_at, block.used_at)
        for session_id in block.sessions or ():
            self._shorten(session_id, parent, losses)
        if parent is not None and block.sessions:
            _arrive(parent, block.sessions)

    def _shorten(self, session_id: SessionId, parent: _Block | None, losses: Losses) -> None:
        end = self._ends[session_id]
        kept_tokens = 0 if parent is None else parent.end_tokens or 0
        if not kept_tokens or end.reported_tokens - kept_tokens >= STEP_TOKENS:
            self._whole_tokens[session_id] = max(end.reported_tokens, self._whole_tokens.get(session_id, 0))
            losses.kept_tokens[session_id] = end.reported_tokens = kept_tokens
            if len(self._whole_tokens) > MAX_SESSIONS:
                del self._whole_tokens[next(iter(self._whole_tokens))]
        if parent is None:
            del self._ends[session_id]
        else:
            end.block = parent


def _end(parent: _Block | None, block_tokens: int, is_rooted: bool) -> int | None:
    if is_rooted:
        return block_tokens
    return None if parent is None or parent.end_tokens is None else parent.end_tokens + block_tokens


def _arrive(block: _Block, sessions: set[SessionId]) -> None:
    if block.sessions is None:
        block.sessions = sessions
    else:
        block.sessions |= sessions


def _leave(block: _Block, session_id: SessionId) -> None:
    if block.sessions is not None:
        block.sessions.discard(session_id)


# ---- the listener: evicted prefixes and cleared caches as facts

LOG = logging.getLogger(__name__)

REPLAY_S = 5.0
OPEN_AGAIN_S = 5.0
"""A port that is in use may be that of a gateway that is about to stop."""
_NUMBER_BYTES = 8
_END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
_MOST_QUEUED = 100_000
"""Batches that wait to be read, as many as vLLM keeps; more are dropped and show as a gap."""

Evicted = Callable[[ReplicaId, int, float | None], None]
"""(replica, blocks, horizon in seconds): metrics."""


class KvEventListener:
    """Owns the sockets and their tasks."""

    def __init__(self, tell: Callable[[Fact], None], evicted: Evicted) -> None:
        self._context = zmq.asyncio.Context()
        self._tell = tell
        self._evicted = evicted
        self._tasks: dict[RunningEngine, dict[asyncio.Task[None], EventSource]] = {}
        self._heard_at: dict[RunningEngine, tuple[KvEventSource, ...]] = {}
        """Where each one is heard."""

    async def follow(self, engines: Collection[RunningEngine]) -> None:
        """Hear these from now on, and no others. A source that cannot be opened is logged, shown by `turngate
        doctor` and tried again."""
        wanted = {engine: engine.kv_event_sources for engine in engines}
        gone = [engine for engine, heard_at in self._heard_at.items() if wanted.get(engine) != heard_at]
        left = [self._tasks.pop(engine) for engine in gone if self._heard_at.pop(engine, None) is not None]
        for tasks in left:
            await self._leave(tasks)
        for engine, sources in wanted.items():
            if engine not in self._heard_at:
                self._heard_at[engine] = sources
                self._tasks[engine] = dict(self._heard(engine, source) for source in sources)

    def forget_session(self, session_id: SessionId) -> None:
        for sources in self._tasks.values():
            for source in sources.values():
                source.index.forget_session(session_id)

    async def stop(self) -> None:
        await self.follow(())
        self._context.destroy(linger=0)

    def _heard(self, engine: RunningEngine, address: KvEventSource) -> tuple[asyncio.Task[None], EventSource]:
        source = EventSource(engine, address, self._context, self._tell, self._evicted)
        return asyncio.create_task(source.run(source.open()), name=f"KV events {source.url}"), source

    async def _leave(self, sources: Mapping[asyncio.Task[None], EventSource]) -> None:
        for task in sources:
            task.cancel()
        await asyncio.gather(*sources, return_exceptions=True)
        for source in sources.values():
            source.close()


class EventSource:
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
        self._sequence = BatchSequence()
        self._socket = context.socket(zmq.SUB)

    def open(self) -> bool:
        """Bind or connect. Returns False, and logs why, when that is not possible."""
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
        """Listen until cancelled. After a message that cannot be read the index starts empty."""
        if not is_open:
            await self._open_again()
        await self._read_history()
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
        heard = self._sequence.classify(number)
        if heard is HeardBatch.RESTART:
            self.index.clear()
            if (replica_id := self._replica_id(decode(payload).rank)) is not None:
                self._tell(CacheLost(replica_id, None))
            heard = self._sequence.restart(number)
        if heard is HeardBatch.GAP:
            await self._fill_gap(number)
        if heard is not HeardBatch.OLD and number >= self._sequence.next:
            self._apply(number, payload)

    async def _read_history(self) -> None:
        """Take over what the engine did before anyone listened. Its evictions are none of this gateway's time, so
        they are not counted; how long they had been idle is known by them."""
        try:
            async with asyncio.timeout(REPLAY_S):
                async for number, payload in self._replay(0):
                    if number > self._sequence.next:
                        self.index.clear()
                    self._take(number, payload)
        except (TimeoutError, ValueError) as error:
            LOG.info("engine %s: %s replays no history: %s", self._engine.name, self._replay_url, error)
        if (horizon_s := self.index.horizon_s()) is not None:
            self._evicted(self._replica_id(None) or self._engine.name, 0, horizon_s)

    async def _fill_gap(self, number: int) -> None:
        """Request the batches that are missing before `number`. Where they are lost, the index is cleared."""
        try:
            async with asyncio.timeout(REPLAY_S):
                async for replayed, payload in self._replay(self._sequence.next):
                    if replayed > self._sequence.next:
                        self.index.clear()
                    if replayed >= self._sequence.next:
                        self._apply(replayed, payload)
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

    def _take(self, number: int, payload: bytes) -> tuple[EventBatch, Losses]:
        self._sequence.mark_applied(number)
        batch = decode(payload)
        self._engine.kv_events.num_batches += 1
        return batch, self.index.apply(batch.events, batch.at)

    def _apply(self, number: int, payload: bytes) -> None:
        batch, losses = self._take(number, payload)
        replica_id = self._replica_id(batch.rank)
        if losses.num_blocks:
            self._evicted(replica_id or self._engine.name, losses.num_blocks, self.index.horizon_s())
        if replica_id is not None and losses.is_cleared:
            self._tell(CacheLost(replica_id, None))
        if replica_id is not None and losses.kept_tokens:
            self._tell(CacheLost(replica_id, losses.kept_tokens))

    def _replica_id(self, rank: int | None) -> ReplicaId | None:
        """The replica of a rank. None: not known, as for one of several workers behind a Dynamo frontend."""
        pools = [pool.name for pool in self._engine.report.pools]
        if len(pools) == 1:
            return self._engine.replica_id(pools[0])
        return self._engine.replica_id(str(rank)) if str(rank) in pools else None


def listens(url: str) -> bool:
    """Whether this side binds: the side with the `*` does, as in vLLM; `@` asks for it on one address."""
    return "*" in url or url.startswith("@")
