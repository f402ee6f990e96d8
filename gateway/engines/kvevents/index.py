"""Which blocks one KV pool holds, from its own events: what was evicted, after how long, and of whom.

A block's hash covers its whole prefix, so blocks form a tree. Engines evict a block after everything that builds
on it (vLLM frees in reverse order, SGLang evicts leaves): so a removal moves the ends of its sessions to its
parent, in constant time, and a block is as recently used as the last of those that went before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.engines.kvevents.wire import DEVICE, Cleared, Event, Hash, Removed, Stored
from policies.types import SessionId

STEP_TOKENS = 128
"""A session's loss is told in steps of this size: about one block of the gateway's own."""
MAX_SAMPLES = 256
"""Evicted chains that the horizon is taken from."""
MAX_SESSIONS = 20_000
QUANTILE = 0.1


@dataclass(slots=True, eq=False)
class _Block:
    hash: Hash
    parent: _Block | None
    end_tokens: int | None
    """Length of the prefix up to its end. None: its beginning was stored before anybody listened."""
    used_at: float
    tiers: tuple[str, ...] = ()
    """Where it is. Empty, with children: a second copy of it was evicted, or the prefix of what is still there."""
    num_children: int = 0
    sessions: set[SessionId] | None = None
    """Sessions whose cached prefix ends here."""


@dataclass(slots=True, eq=False)
class _End:
    block: _Block
    told_tokens: int


@dataclass(slots=True)
class Losses:
    """What a batch of events took away, or gave back."""

    num_blocks: int = 0
    """Blocks that are in no tier any more."""
    kept_tokens: dict[SessionId, int] = field(default_factory=dict)
    """Sessions that lost a part of their prefix, or regained what was told as lost: the length that is cached."""
    is_cleared: bool = False


class BlockIndex:
    """Of one publisher. Sessions are those that engines name; at most MAX_SESSIONS, the least recent forgotten."""

    def __init__(self) -> None:
        self._blocks: dict[Hash, _Block] = {}
        self._ends: OrderedDict[SessionId, _End] = OrderedDict()
        self._whole_tokens: dict[SessionId, int] = {}
        """Sessions of which a loss was told, and not yet that it is made good: their length before it."""
        self._idle_s: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._last_used_at: float | None = None

    def __len__(self) -> int:
        return len(self._blocks)

    def cached_tokens(self, session_id: SessionId) -> int:
        """Length of the session's longest prefix that is cached; 0 when none is known."""
        end = self._ends.get(session_id)
        return 0 if end is None else end.block.end_tokens or 0

    def horizon_s(self) -> float | None:
        """How long nine in ten evicted chains had been idle at least. None before the first eviction."""
        idle_s = sorted(self._idle_s)
        return idle_s[int(QUANTILE * len(idle_s))] if idle_s else None

    def clear(self) -> None:
        self._blocks.clear()
        self._ends.clear()
        self._whole_tokens.clear()

    def apply(self, events: Iterable[Event], at: float) -> Losses:
        """Take in what one engine step did, at its own time."""
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
                    continue  # a slower tier names a block that nobody described
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
        """The longest chain of a session counts: side requests under its name are short."""
        end = self._ends.get(session_id)
        if end is None:
            self._ends[session_id] = _End(block, end_tokens)
            if len(self._ends) > MAX_SESSIONS:
                oldest, dropped = self._ends.popitem(last=False)
                _leave(dropped.block, oldest)
        elif end_tokens >= (end.block.end_tokens or 0):
            _leave(end.block, session_id)
            end.block, end.told_tokens = block, end_tokens
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
        if block.used_at != self._last_used_at:  # one sample per chain, not per block
            self._last_used_at = block.used_at
            self._idle_s.append(max(0.0, at - block.used_at))
        parent = block.parent
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
        if not kept_tokens or end.told_tokens - kept_tokens >= STEP_TOKENS:
            self._whole_tokens[session_id] = max(end.told_tokens, self._whole_tokens.get(session_id, 0))
            losses.kept_tokens[session_id] = end.told_tokens = kept_tokens
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
