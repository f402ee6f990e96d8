"""The union of many block chains, each shared block counted once: a radix tree whose edges are runs of blocks.

A block id covers its whole prefix, so a run is found by the id of its first block alone, wherever it hangs. A
chain that grows lengthens the run at its end; costs are per run on its path, not per block.
"""

from __future__ import annotations

from policies.types import Blocks


class _Run:
    """Blocks `start` to `end` of the chain that first brought them, held by the same sessions."""

    __slots__ = ("chain", "end", "holders", "start")

    def __init__(self, chain: Blocks, start: int, end: int, holders: int) -> None:
        self.chain, self.start, self.end, self.holders = chain, start, end, holders


class Union:
    """Chains are held and dropped by whoever knows them; one that is held twice counts twice as a holder."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        """By the id of their first block."""
        self._num_blocks = 0

    def __len__(self) -> int:
        """Blocks held by at least one chain."""
        return self._num_blocks

    def shared(self, blocks: Blocks) -> int:
        """Number of leading blocks of `blocks` that some chain holds."""
        depth, length = 0, len(blocks)
        while depth < length and (run := self._runs.get(blocks[depth])) is not None:
            depth = _common_end(run, blocks, length)
            if depth < run.end:
                break
        return depth

    def private(self, blocks: Blocks) -> int:
        """Number of blocks of a held chain that nobody else holds: always its tail."""
        depth, length = 0, len(blocks)
        while depth < length and (run := self._runs[blocks[depth]]).holders > 1:
            depth = run.end
        return length - depth

    def move(self, old: Blocks, new: Blocks) -> None:
        """A holder holds `new` instead of `old`; either may be empty."""
        common = shared_length(old, new)
        last = self._boundary(new, common)
        self._enter(new, common, last)
        self._leave(old, common)

    def _boundary(self, blocks: Blocks, at: int) -> _Run | None:
        """Make a run end at this length of a held chain; the run that does, None for length 0."""
        depth, run = 0, None
        while depth < at:
            run = self._runs[blocks[depth]]
            if run.end > at:
                self._split(run, at)
            depth = run.end
        return run

    def _split(self, run: _Run, at: int) -> None:
        self._runs[run.chain[at]] = _Run(run.chain, at, run.end, run.holders)
        run.end = at

    def _enter(self, blocks: Blocks, depth: int, last: _Run | None) -> None:
        """One more holder of the chain from `depth` on, where the run `last` ends."""
        length = len(blocks)
        while depth < length and (run := self._runs.get(blocks[depth])) is not None:
            common = _common_end(run, blocks, length)
            if common < run.end:
                self._split(run, common)
            run.holders += 1
            depth, last = common, run
        if depth == length:
            return
        self._num_blocks += length - depth
        if last is not None and last.holders == 1:
            last.chain, last.end = blocks, length  # its one holder is this one
        else:
            self._runs[blocks[depth]] = _Run(blocks, depth, length, 1)

    def _leave(self, blocks: Blocks, depth: int) -> None:
        """One holder less from `depth` on, where a run begins."""
        length = len(blocks)
        while depth < length:
            run = self._runs[blocks[depth]]
            depth = run.end
            run.holders -= 1
            if not run.holders:
                self._num_blocks -= run.end - run.start
                del self._runs[blocks[run.start]]


def _common_end(run: _Run, blocks: Blocks, length: int) -> int:
    """To where a chain that reaches the run agrees with it."""
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
