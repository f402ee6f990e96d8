"""Reuse distances of sessions in one KV pool: how much was touched since a session's last turn.

An engine evicts first what was released first. So a prompt is still cached as long as its distance, the distinct
text that was touched since together with its own, is below the size of the pool: the stack distance of an LRU
cache (Mattson et al., 1970). A turn holds its prompt while it runs, which makes it newer than all that was
released.

A radix tree of runs of blocks counts a shared prefix once. A turn that holds or releases a run does so with its
parents, so no parent is older than its children. Sums over the releases, in chunks, make a turn cost a few
operations per run on its path, however many sessions there are. Sizes are characters; the pool owns the ratio to
tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from policies.ledger import shared_length
from policies.types import BLOCK_CHARS, Blocks, SessionId, TurnId

CHUNK_BITS = 8
CHUNK = 1 << CHUNK_BITS
LAST = CHUNK - 1
"""Releases that are added up one by one; older ones by chunks of so many."""
TAIL_CHARS = BLOCK_CHARS // 2
"""Expected length of a common text behind the last common block."""
MAX_CHUNKS = 1 << 9
"""Chunks that are kept apart; all older ones count as one."""
MAX_RUNS = 1 << 16
"""Runs that are remembered; those released first are dropped."""


class _TouchedRun:
    """Blocks `start` to `end` of the chain that first brought them, and the text behind the last whole block."""

    __slots__ = (
        "answer_chars",
        "chain",
        "chars",
        "end",
        "has_children",
        "num_holders",
        "parent",
        "stamp",
        "start",
    )

    def __init__(self, chain: Blocks, start: int, end: int, parent: _TouchedRun | None) -> None:
        self.chain, self.start, self.end, self.parent = chain, start, end, parent
        """An end of 0: it was dropped."""
        self.chars = self.answer_chars = 0
        """Of all that ends here, and of the answer in it."""
        self.has_children = False
        self.num_holders = 0
        """Turns that run on it."""
        self.stamp = -1
        """Number of its last release. -1: never released."""


class Reuse(NamedTuple):
    """Of the last prompt of a session."""

    distance_chars: int
    """What was touched since, and the prompt itself."""
    private_chars: int
    """The end of it that no other prompt shares or continues; 0 where all is shared."""


class ReuseDistances:
    """Of one pool, which owns it. Each turn that begins ends once."""

    def __init__(self, tail_chars: int = TAIL_CHARS) -> None:
        """`tail_chars`: what two prompts that part share behind their last common block."""
        self._tail_chars = tail_chars
        self._runs: OrderedDict[int, _TouchedRun] = OrderedDict()
        """By the id of their first block. Those released first come first, children before parents."""
        self._ends: dict[SessionId, tuple[_TouchedRun, int]] = {}
        """Where the last prompt of a session ends: the run, and the number of blocks."""
        self._holds: dict[TurnId, _TouchedRun] = {}
        """The last run of each prompt that is held."""
        self._held_chars = 0
        self._sums, self._chunks = [0], [[0] * CHUNK]
        """Characters by their last release: of each chunk, and of each release in it."""
        self._first_stamp = 0
        """Of the oldest chunk."""
        self._num_releases = 0

    def distance_chars(self, session_id: SessionId) -> int | None:
        """Return how much was touched since the session's last prompt, and that prompt itself; each block counts
        once. None: it is not remembered here."""
        run, num_blocks = self._ends.get(session_id, (None, 0))
        return None if run is None or not run.end else self._reuse(run, num_blocks).distance_chars

    def _reuse(self, run: _TouchedRun, num_blocks: int) -> Reuse:
        """Return the reuse of a prompt of so many blocks, which ends in this run."""
        while run.start >= num_blocks and run.parent is not None:  # another turn made it longer, and it was split
            run = run.parent
        private_chars = 0 if run.has_children else run.chars - run.answer_chars
        if run.num_holders:
            return Reuse(self._held_chars, private_chars)
        place = max(0, run.stamp - self._first_stamp)
        chunk = place >> CHUNK_BITS
        newer_chars = sum(self._chunks[chunk][place & LAST :]) + sum(self._sums[chunk + 1 :])
        return Reuse(self._held_chars + newer_chars, private_chars)

    def begin(self, turn_id: TurnId, session_id: SessionId, blocks: Blocks, chars: int) -> Reuse | None:
        """Let a turn hold its prompt until it ends. Return the reuse of the session's last prompt. None: it is not
        remembered, or this prompt does not begin with all of it but its last block."""
        if not blocks:
            return None  # nothing of it is looked for again
        before, reuse = self._ends.get(session_id), None
        if before is not None and (run := before[0]).end:
            at = before[1] - 2 if before[1] > 1 else 0
            if at < run.end and at < len(blocks) and blocks[at] == run.chain[at]:
                reuse = self._reuse(run, before[1])
        run = self._reach(before, blocks)
        self._ends[session_id], self._holds[turn_id] = (run, len(blocks)), run
        node: _TouchedRun | None = run
        while node is not None:
            if not node.num_holders:
                if node.stamp >= 0:
                    self._count(node.stamp, -node.chars)
                self._held_chars += node.chars
            node.num_holders += 1
            node = node.parent
        before_chars, run.answer_chars = run.chars, 0
        tail_chars = chars - run.end * BLOCK_CHARS
        run.chars = (run.end - run.start) * BLOCK_CHARS + (tail_chars if tail_chars > 0 else 0)
        if run.parent is not None:
            run.chars -= self._tail_chars
        self._held_chars += run.chars - before_chars
        return reuse

    def end(self, turn_id: TurnId, answer_chars: int = 0, lost_chars: int = 0) -> None:
        """Release the prompt of a turn and its answer: what the next prompt finds again, and what only takes room
        until it is evicted."""
        run = self._holds.pop(turn_id, None)
        if run is None:
            return
        run.answer_chars = answer_chars
        run.chars += answer_chars
        self._held_chars += answer_chars
        released_chars = 0
        node: _TouchedRun | None = run
        while node is not None:
            node.num_holders -= 1
            if not node.num_holders:
                node.stamp = self._num_releases
                released_chars += node.chars
                self._runs.move_to_end(node.chain[node.start])
            node = node.parent
        self._held_chars -= released_chars
        self._count(self._num_releases, released_chars + lost_chars)
        self._num_releases += 1
        if not self._num_releases & LAST:
            self._next_chunk()
        if len(self._runs) > MAX_RUNS:
            self._drop_oldest()

    def forget(self, session_id: SessionId) -> None:
        """Forget where the session's last prompt ends, and its own text. Distances of others still count that."""
        run, _ = self._ends.pop(session_id, (None, 0))
        if run is not None and run.end and not run.num_holders and not run.has_children:
            del self._runs[run.chain[run.start]]
            run.end = 0

    # ---- the tree

    def _reach(self, before: tuple[_TouchedRun, int] | None, blocks: Blocks) -> _TouchedRun:
        """Return the run that ends where this chain ends, made where there is none. `before`: where the session's
        last prompt ends."""
        last, depth = before or (None, 0)
        own = last
        if last is None or last.end != depth or depth > len(blocks) or blocks[depth - 1] != last.chain[depth - 1]:
            last = own = None
            depth = 0
        while depth < len(blocks) and (run := self._runs.get(blocks[depth])) is not None:
            end = run.end if run.end < len(blocks) else len(blocks)
            if blocks[end - 1] != run.chain[end - 1]:
                end = shared_length(run.chain, blocks)
            last, depth = run if end == run.end else self._split(run, end), end
        if last is not None and depth == len(blocks):
            return last
        if last is not None and last is own and not last.has_children:
            last.chain, last.end = blocks, len(blocks)
            return last
        return self._append(blocks, depth, last)

    def _split(self, run: _TouchedRun, at: int) -> _TouchedRun:
        """Cut a run in two, and return the upper part. `run` stays the lower one, so that prompts which end there
        stay right."""
        upper = _TouchedRun(run.chain, run.start, at, run.parent)
        upper.chars = (at - run.start) * BLOCK_CHARS
        upper.has_children, upper.num_holders, upper.stamp = True, run.num_holders, run.stamp
        self._runs[run.chain[run.start]], self._runs[run.chain[at]] = upper, run
        run.start, run.parent, run.chars = at, upper, run.chars - upper.chars
        return upper

    def _append(self, blocks: Blocks, depth: int, parent: _TouchedRun | None) -> _TouchedRun:
        """Add a run. The text behind the last whole block of its parent is not part of this chain."""
        if parent is not None:
            parent.has_children = True
            tail_chars = parent.chars - (parent.end - parent.start) * BLOCK_CHARS
            parent.chars -= tail_chars
            if parent.num_holders:
                self._held_chars -= tail_chars
            else:
                self._count(parent.stamp, -tail_chars)
        run = self._runs[blocks[depth]] = _TouchedRun(blocks, depth, len(blocks), parent)
        return run

    def _drop_oldest(self) -> None:
        key, run = next(iter(self._runs.items()))
        if run.num_holders:
            self._runs.move_to_end(key)
            return
        self._count(run.stamp, -run.chars)
        run.end = 0
        del self._runs[key]

    # ---- sums over the releases

    def _count(self, stamp: int, chars: int) -> None:
        place = stamp - self._first_stamp if stamp > self._first_stamp else 0
        chunk = place >> CHUNK_BITS
        self._chunks[chunk][place & LAST] += chars
        self._sums[chunk] += chars

    def _next_chunk(self) -> None:
        self._sums.append(0)
        self._chunks.append([0] * CHUNK)
        if len(self._sums) > MAX_CHUNKS:
            oldest_chars = self._sums.pop(0)
            del self._chunks[0]
            self._first_stamp += CHUNK
            self._count(self._first_stamp, oldest_chars)
