"""How `limits.memory_bytes` is divided among the owners of what a gateway keeps beyond a request."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.settings import Settings

MOST_OF_OTHERS = 10 / 16
"""Share of all that owners beside those of sessions may have. By default they want no more."""
TOOL_LIST_BYTES = PREFIX_BREAK_BYTES = FAMILY_BYTES = 16 * 2**20
PLACE_BYTES = 32 * 2**20
PARSED_BYTES = 64 * 2**20
"""Some sixty conversations of a megabyte."""
OF_SMALL_BODIES = 1 / 16
"""Of bodies that need no room, over that of `limits.incoming_bytes`."""
OF_BATCH_LINES, OF_RECOGNITION = 1 / 8, 0.5
"""Share of batches, where they are on, in what is left for sessions, and of recognition in the rest of that."""


@dataclass(frozen=True, slots=True)
class MemoryBounds:
    """Bounds in bytes, by owner. Their sum is at most `limits.memory_bytes`."""

    incoming_bodies: int
    parsed_beginnings: int
    receipts: int
    hidden_results: int
    tool_results: int
    tool_lists: int
    prefix_breaks: int
    families: int
    response_places: int
    batch_lines: int
    """What is remembered of the sessions of lines, which have a table of their own."""
    recognition: int
    sessions: int

    @property
    def large_bodies(self) -> int:
        """Room of bodies that need room: `limits.incoming_bytes`, or less."""
        return int(self.incoming_bodies / (1 + OF_SMALL_BODIES))

    @staticmethod
    def of(settings: Settings) -> MemoryBounds:
        """Return the bounds: what each owner's own key or constant says, or less, in proportion, where
        `memory_bytes` is small; the rest is for sessions."""
        has_tools = bool(settings.tools.use or settings.tools.mcp)
        wanted = {
            "incoming_bodies": int((1 + OF_SMALL_BODIES) * settings.limits.incoming_bytes),
            "parsed_beginnings": PARSED_BYTES,
            "receipts": settings.receipts.max_bytes,
            "hidden_results": settings.tools.hidden_bytes if has_tools else 0,
            "tool_results": settings.tools.cache_bytes if has_tools else 0,
            "tool_lists": TOOL_LIST_BYTES,
            "prefix_breaks": PREFIX_BREAK_BYTES,
            "families": FAMILY_BYTES,
            "response_places": PLACE_BYTES,
        }
        memory_bytes = settings.limits.memory_bytes
        scale = min(1.0, MOST_OF_OTHERS * memory_bytes / sum(wanted.values()))
        bounds = {owner: int(scale * num_bytes) for owner, num_bytes in wanted.items()}
        left = memory_bytes - sum(bounds.values())
        batch_lines = int(OF_BATCH_LINES * left) if settings.batches.directory is not None else 0
        recognition = int(OF_RECOGNITION * (left - batch_lines))
        sessions = left - batch_lines - recognition
        return MemoryBounds(**bounds, batch_lines=batch_lines, recognition=recognition, sessions=sessions)
