"""The residency ledger of one replica: which blocks its sessions keep, counted once however many share them."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from policies.types import Blocks, SessionId
from policies.union import BOTH, CACHED, RESIDENT, Union


class Met(NamedTuple):
    """What one more resident's chain met."""

    new_blocks: int
    """That none of the residents held."""
    expected_blocks: int
    """Leading ones that the engine's cache should have had before."""


class Ledger:
    """Residents (meant to stay) and the merely cached (released, evicted oldest first as the pool fills).

    Sizes are blocks; the Scheduler owns the ratio of tokens to blocks.
    """

    def __init__(self) -> None:
        self.union = Union()
        """Cached are residents and released together: what the engine should still have."""
        self._chains: dict[SessionId, Blocks] = {}
        self._cut: dict[SessionId, int] = {}
        """Leading blocks that are left of chains that the engine evicted in part, by its own account."""
        self._released: OrderedDict[SessionId, None] = OrderedDict()

    @property
    def resident_blocks(self) -> int:
        """Size of the union of all residents."""
        return self.union.resident_blocks

    @property
    def num_residents(self) -> int:
        return len(self._chains) - len(self._released)

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
        """End a residency; its blocks count as cached until `evict` or `forget` drops them."""
        self.union.move(RESIDENT, self._chains[session_id], ())
        self._released[session_id] = None

    def evict(self, capacity_blocks: float) -> None:
        """Drop the longest released until everything present fits the pool, as an LRU cache would."""
        while self._released and self.union.cached_blocks > capacity_blocks:
            self._drop(next(iter(self._released)))

    def forget(self, session_id: SessionId) -> None:
        """The session is gone for good."""
        if self.is_resident(session_id):
            self.release(session_id)
        if session_id in self._chains:
            self._drop(session_id)

    def cut(self, session_id: SessionId, blocks: int) -> None:
        """The engine has so many leading blocks of a session; a resident stays one, and recomputes the rest."""
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
        """What of a session's chain counts as present."""
        chain, cut = self._chains.get(session_id, ()), self._cut.get(session_id)
        return chain if cut is None else chain[:cut]

    def _drop(self, session_id: SessionId) -> None:
        """Forget a released session."""
        self.union.move(CACHED, self._cached(session_id), ())
        self._cut.pop(session_id, None)
        del self._released[session_id], self._chains[session_id]
