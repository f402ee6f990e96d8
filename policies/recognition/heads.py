"""What first prompts of one agent have in common, system text and tools, hashed once for all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from policies.recognition.chains import Chain, block_chain, digest, name
from policies.types import BLOCK_CHARS, FamilyId

MAX_HEADS = 512


class Head:
    """Hashes of a system text and of tools; no content."""

    __slots__ = ("_system_first", "family_id", "static", "system_hash")

    def __init__(self, key: bytes, tools: Sequence[bytes], system: bytes) -> None:
        self.static = block_chain(key, (*tools, system))
        self.system_hash = digest(key, b"system", system)
        self.family_id: FamilyId = name(key, b"family", system[:BLOCK_CHARS], *tools)
        self._system_first = block_chain(key, (system, *tools)) if tools else self.static

    def blocks(self, tools_first: bool) -> Chain:
        """Its whole blocks, in the order in which the model renders."""
        return self.static if tools_first else self._system_first


class Heads:
    """The latest ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Head] = OrderedDict()

    def of(self, key: bytes, tools: tuple[bytes, ...], system: bytes) -> Head:
        known = self._known
        seen = hash((key, tools, system))
        head = known.get(seen)
        if head is None:
            head = known[seen] = Head(key, tools, system)
            if len(known) > MAX_HEADS:
                known.popitem(last=False)
        else:
            known.move_to_end(seen)
        return head
