"""A paged KV pool with prefix reuse, as counts of free, cached and held blocks, and the order of eviction.

The id of a block covers its whole prefix, so two chains that agree at one index agree everywhere before it. That
allows a radix tree whose nodes are runs of blocks: to hold, commit or release a context of thousands of blocks
touches a few nodes, never each block.

Laws:
- Each block is exactly one of free, idle (cached, not held), shared (cached, held) or private (held, not cached).
- A sequence that holds a node holds its ancestors, and nodes are released tail first. So the least recently
  released node never has children: eviction is vLLM's block LRU, tail first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class _Node:
    """A run of cached blocks that follow each other."""

    __slots__ = ("children", "num_holders", "parent", "run")

    def __init__(self, parent: _Node | None, run: list[int], num_holders: int) -> None:
        self.parent = parent
        self.run = run
        self.num_holders = num_holders
        self.children: dict[int, _Node] = {}
        """Children by the first block of their runs."""


class BlockHolding:
    """The blocks of one sequence: a cached prefix, then private blocks. Only its pool changes it."""

    __slots__ = ("node", "num_private", "num_shared")

    def __init__(self, node: _Node) -> None:
        self.node = node
        self.num_shared = 0
        self.num_private = 0

    @property
    def num_blocks(self) -> int:
        return self.num_shared + self.num_private


class BlockPool:
    """The blocks of one engine."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.num_idle = 0
        self._root = _Node(None, [], 1)
        self._idle: OrderedDict[_Node, None] = OrderedDict()
        """Idle nodes, the least recently released one first."""

    @property
    def num_available(self) -> int:
        """Blocks that `grow` may take, with evictions if necessary."""
        return self.num_free + self.num_idle

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold, which vLLM reports as its KV usage."""
        return self.num_blocks - self.num_available

    def peek(self, chain: Sequence[int], limit: int) -> tuple[int, int]:
        """Return how many of the first `limit` blocks of a chain are cached, and how many of those are idle."""
        num_cached = num_idle = 0
        for node, num_matched in self._matches(self._root, chain, 0, limit):
            num_cached += num_matched
            num_idle += 0 if node.num_holders else num_matched
        return num_cached, num_idle

    def holding(self) -> BlockHolding:
        """Return a holding without blocks."""
        return BlockHolding(self._root)

    def reuse(self, holding: BlockHolding, chain: Sequence[int], limit: int) -> None:
        """Hold the cached ones of the first `limit` blocks of a chain, beyond those already held."""
        for child, num_matched in self._matches(holding.node, chain, holding.num_shared, limit):
            node = child if num_matched == len(child.run) else self._split(child, num_matched)
            if not node.num_holders:
                self._idle.pop(node, None)  # the upper part of a split was never in it
                self.num_idle -= num_matched
            node.num_holders += 1
            holding.node = node
            holding.num_shared += num_matched

    def grow(self, holding: BlockHolding, num_blocks: int) -> None:
        """Add `num_blocks` private blocks, at most `num_available`."""
        assert num_blocks <= self.num_available, "the caller looks before it takes"
        if num_blocks > self.num_free:
            self._evict(num_blocks - self.num_free)
        self.num_free -= num_blocks
        holding.num_private += num_blocks

    def commit(self, holding: BlockHolding, chain: Sequence[int], upto: int) -> None:
        """Cache the first `upto` blocks of the sequence, which are full, under their ids.

        Where another sequence has cached a block meanwhile, this one holds that block and frees its private copy.
        """
        before = holding.num_shared
        self.reuse(holding, chain, upto)
        num_merged = holding.num_shared - before
        self.num_free += num_merged
        run = list(chain[holding.num_shared : upto])
        if run:
            self._append(holding, run)
        holding.num_private -= num_merged + len(run)

    def release(self, holding: BlockHolding) -> None:
        """Release all blocks of the holding. Cached blocks stay cached until they are evicted."""
        self.num_free += holding.num_private
        node = holding.node
        while node.parent is not None:
            node.num_holders -= 1
            if not node.num_holders:
                self._idle[node] = None
                self.num_idle += len(node.run)
            node = node.parent
        holding.node, holding.num_shared, holding.num_private = self._root, 0, 0

    def _matches(self, node: _Node, chain: Sequence[int], at: int, limit: int) -> Iterator[tuple[_Node, int]]:
        """Yield the nodes below `node` through which a chain runs, each with the number of blocks that agree."""
        while at < limit:
            child = node.children.get(chain[at])
            if child is None:
                return
            num_matched = _agreement(child.run, chain, at, limit)
            is_whole = num_matched == len(child.run)  # read now: the caller may split it
            yield child, num_matched
            if not is_whole:
                return
            node, at = child, at + num_matched

    def _append(self, holding: BlockHolding, run: list[int]) -> None:
        node = holding.node
        if node.num_holders == 1 and not node.children and node.parent is not None:
            node.run += run  # no other sequence ends here
        else:
            holding.node = node.children[run[0]] = _Node(node, run, 1)
        holding.num_shared += len(run)

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two, and return the upper part.

        `node` stays the lower one, so holdings that end there and its place in the order of eviction stay right.
        """
        assert node.parent is not None
        upper = _Node(node.parent, node.run[:at], node.num_holders)
        node.parent.children[upper.run[0]] = upper
        node.run = node.run[at:]
        node.parent = upper
        upper.children[node.run[0]] = node
        return upper

    def _evict(self, num_blocks: int) -> None:
        self.num_idle -= num_blocks
        self.num_free += num_blocks
        while num_blocks:
            node = next(iter(self._idle))
            num_cut = min(num_blocks, len(node.run))
            num_blocks -= num_cut
            if num_cut < len(node.run):
                del node.run[-num_cut:]
                return
            assert node.parent is not None
            assert not node.children
            del self._idle[node]
            del node.parent.children[node.run[0]]


def _agreement(run: list[int], chain: Sequence[int], at: int, limit: int) -> int:
    """Return how many blocks of `run` agree with chain[at:limit]. The first one does."""
    most = min(len(run), limit - at)
    if run[most - 1] == chain[at + most - 1]:
        return most
    low, high = 1, most - 1
    while low < high:
        middle = (low + high + 1) // 2
        if run[middle - 1] == chain[at + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
