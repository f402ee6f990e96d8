"""The ledger of a replica's cache, over the union of block chains: a shared block counts once.

The union is a radix tree whose edges are runs of blocks.

A chain is held in up to two ways, as cached and as resident, and each way has a union of its own. One tree keeps
both, since almost every chain is held both ways. A block id covers its whole prefix, so a run is found by the id
of its first block alone, wherever it hangs. A chain that grows lengthens the run at its end; costs are per run on
its path, not per block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from policies.types import Blocks, SessionId


class Way(NamedTuple):
    """A way to hold a chain: the numbers of holders that it adds to each run."""

    cached: int
    resident: int


BOTH, CACHED, RESIDENT = Way(1, 1), Way(1, 0), Way(0, 1)


class _Run:
    """Blocks `start` to `end` of the chain that first brought them, held by the same sessions."""

    __slots__ = ("cached", "chain", "end", "resident", "start")

    def __init__(self, chain: Blocks, start: int, end: int, cached: int, resident: int) -> None:
        self.chain, self.start, self.end = chain, start, end
        self.cached, self.resident = cached, resident
        """Numbers of holders."""


class Union:
    """Chains by their holders. A chain that is held twice has two holders."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        """By the id of their first block."""
        self.cached_blocks = self.resident_blocks = 0
        """Held so by at least one chain."""

    def cached(self, blocks: Blocks) -> int:
        """Number of leading blocks of `blocks` that some chain holds as cached."""
        depth, length = 0, len(blocks)
        while depth < length and (run := self._runs.get(blocks[depth])) is not None and run.cached:
            depth = _common_end(run, blocks, length)
            if depth < run.end:
                break
        return depth

    def resident(self, blocks: Blocks) -> int:
        """Number of leading blocks of `blocks` that some chain holds as resident."""
        depth, length = 0, len(blocks)
        while depth < length and (run := self._runs.get(blocks[depth])) is not None and run.resident:
            depth = _common_end(run, blocks, length)
            if depth < run.end:
                break
        return depth

    def private(self, blocks: Blocks) -> int:
        """Number of blocks of a resident chain that no other resident holds: always its tail."""
        depth, length = 0, len(blocks)
        while depth < length and (run := self._runs[blocks[depth]]).resident > 1:
            depth = run.end
        return length - depth

    def move(self, way: Way, old: Blocks, new: Blocks) -> tuple[int, int]:
        """Let a holder hold `new` instead of `old`, both in this way; either may be empty. Return by how many
        blocks the cached and the resident union grew before `old` was left."""
        common = shared_length(old, new)
        last = self._boundary(new, common)  # before a run that both share is left
        cached_before, resident_before = self.cached_blocks, self.resident_blocks
        self._enter(way, new, common, last)
        grown = self.cached_blocks - cached_before, self.resident_blocks - resident_before
        if common < len(old):
            self._leave(way, old, common)
        return grown

    def _boundary(self, blocks: Blocks, at: int) -> _Run | None:
        """Make a run end at this length of a held chain. Return the run; None for length 0."""
        depth, run = 0, None
        while depth < at:
            run = self._runs[blocks[depth]]
            if run.end > at:
                self._split(run, at)
            depth = run.end
        return run

    def _split(self, run: _Run, at: int) -> None:
        self._runs[run.chain[at]] = _Run(run.chain, at, run.end, run.cached, run.resident)
        run.end = at

    def _enter(self, way: Way, blocks: Blocks, depth: int, last: _Run | None) -> None:
        """Add a holder to the chain from `depth` on, where the run `last` ends."""
        cached, resident = way
        length = len(blocks)
        while depth < length and (run := self._runs.get(blocks[depth])) is not None:
            common = _common_end(run, blocks, length)
            if common < run.end:
                self._split(run, common)
            if cached and not run.cached:
                self.cached_blocks += common - depth
            if resident and not run.resident:
                self.resident_blocks += common - depth
            run.cached, run.resident = run.cached + cached, run.resident + resident
            depth, last = common, run
        if depth == length:
            return
        self.cached_blocks += cached * (length - depth)
        self.resident_blocks += resident * (length - depth)
        if last is not None and last.cached == cached and last.resident == resident:
            last.chain, last.end = blocks, length  # its one holder is this one
        else:
            self._runs[blocks[depth]] = _Run(blocks, depth, length, cached, resident)

    def _leave(self, way: Way, blocks: Blocks, depth: int) -> None:
        """Remove a holder from `depth` on, where a run begins."""
        cached, resident = way
        length = len(blocks)
        while depth < length:
            run = self._runs[blocks[depth]]
            depth = run.end
            run.cached, run.resident = run.cached - cached, run.resident - resident
            if cached and not run.cached:
                self.cached_blocks -= run.end - run.start
            if resident and not run.resident:
                self.resident_blocks -= run.end - run.start
            if not run.cached and not run.resident:
                del self._runs[blocks[run.start]]


def _common_end(run: _Run, blocks: Blocks, length: int) -> int:
    """Return up to where a chain that reaches the run agrees with it."""
    low, high = run.start, min(run.end, length)
    chain = run.chain
    if blocks[high - 1] == chain[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if blocks[middle] == chain[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def shared_length(one: Blocks, other: Blocks) -> int:
    """Length of the common prefix of two chains, by bisection over covering ids."""
    low, high = 0, min(len(one), len(other))
    if high and one[high - 1] == other[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


# ---- the residency ledger of one replica


class Met(NamedTuple):
    """What the cache had of the chain of a new resident."""

    new_blocks: int
    """Blocks that no resident held."""
    expected_blocks: int
    """Leading blocks that the engine's cache should have had."""


class Ledger:
    """Residents, which are meant to stay, and released sessions, which are evicted oldest first as the pool fills.

    Sizes are blocks; the Scheduler owns the ratio of tokens to blocks.
    """

    def __init__(self) -> None:
        self.union = Union()
        """Residents and released sessions together are cached: the engine should still have them."""
        self._chains: dict[SessionId, Blocks] = {}
        self._cut: dict[SessionId, int] = {}
        """Leading blocks that are left of chains that the engine evicted in part, by its own report."""
        self._released: OrderedDict[SessionId, None] = OrderedDict()

    @property
    def resident_blocks(self) -> int:
        """Size of the union of all residents."""
        return self.union.resident_blocks

    @property
    def num_residents(self) -> int:
        return len(self._chains) - len(self._released)

    def residents(self) -> Iterator[SessionId]:
        """Yield the residents, those that came last first. Take them before the next change."""
        return (session_id for session_id in reversed(self._chains) if session_id not in self._released)

    def is_resident(self, session_id: SessionId) -> bool:
        return session_id in self._chains and session_id not in self._released

    def hold(self, session_id: SessionId, blocks: Blocks) -> Met:
        """Make a session resident with these blocks, or replace the blocks of a resident."""
        chain = self._chains.get(session_id, ())
        if session_id in self._released or session_id in self._cut:
            absent_blocks, _ = self.union.move(CACHED, self._cached(session_id), blocks)
            _, new_blocks = self.union.move(RESIDENT, () if session_id in self._released else chain, blocks)
            self._cut.pop(session_id, None)
            self._released.pop(session_id, None)
        else:
            absent_blocks, new_blocks = self.union.move(BOTH, chain, blocks)
        self._chains[session_id] = blocks
        return Met(new_blocks, len(blocks) - absent_blocks)

    def release(self, session_id: SessionId) -> None:
        """End a residency. Its blocks count as cached until `evict` or `forget` drops them."""
        self.union.move(RESIDENT, self._chains[session_id], ())
        self._released[session_id] = None

    def evict(self, capacity_blocks: float) -> None:
        """Drop the sessions that were released first until the rest fits the pool, as an LRU cache would."""
        while self._released and self.union.cached_blocks > capacity_blocks:
            self._drop(next(iter(self._released)))

    def forget(self, session_id: SessionId) -> None:
        """Drop the session for good."""
        if self.is_resident(session_id):
            self.release(session_id)
        if session_id in self._chains:
            self._drop(session_id)

    def cut(self, session_id: SessionId, blocks: int) -> None:
        """Record that the engine has only so many leading blocks of a session. A resident stays one."""
        chain = self._chains.get(session_id, ())
        self.union.move(CACHED, self._cached(session_id), chain[:blocks])
        self._cut.pop(session_id, None)
        if blocks < len(chain):
            self._cut[session_id] = blocks

    def expected_blocks(self, blocks: Blocks) -> int:
        """Leading blocks that should be found in the engine's cache."""
        return self.union.cached(blocks)

    def new_blocks(self, blocks: Blocks) -> int:
        """Blocks by which the union would grow if a session with this chain became resident."""
        return len(blocks) - self.union.resident(blocks)

    def private_blocks(self, session_id: SessionId) -> int:
        """Blocks that would leave the union if this resident was released."""
        return self.union.private(self._chains[session_id])

    def _cached(self, session_id: SessionId) -> Blocks:
        """Return the part of a session's chain that counts as present."""
        chain, cut = self._chains.get(session_id, ()), self._cut.get(session_id)
        return chain if cut is None else chain[:cut]

    def _drop(self, session_id: SessionId) -> None:
        """Forget a released session."""
        self.union.move(CACHED, self._cached(session_id), ())
        self._cut.pop(session_id, None)
        del self._released[session_id], self._chains[session_id]
