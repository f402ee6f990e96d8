"""Short ways to write turns, chains and usage in tests of pure scheduling."""

from __future__ import annotations

from policies.types import BLOCK_CHARS, Ending, Left, Turn, TurnKind, Usage

TOKENS_PER_CHAR = 0.25
TOKENS_PER_BLOCK = round(BLOCK_CHARS * TOKENS_PER_CHAR)


def chain(*parts: tuple[str, int]) -> tuple[int, ...]:
    """A block chain of named parts: equal parts in equal order give equal ids, and only those do."""
    ids: list[int] = []
    prefix = 0
    for name, num_blocks in parts:
        for index in range(num_blocks):
            prefix = hash((prefix, name, index))
            ids.append(prefix)
    return tuple(ids)


def turn(
    turn_id: str,
    *parts: tuple[str, int],
    session: str = "",
    at: float = 0.0,
    family: str = "f",
    kind: TurnKind = TurnKind.AGENT,
    remaining: int | None = None,
    max_wait_s: float = 1e9,
    deadline_at: float | None = None,
    priority_class: int = 0,
    is_retry: bool = False,
    excluded: frozenset[str] = frozenset(),
) -> Turn:
    """A turn whose prompt is made of named parts of whole blocks; `session` defaults to the turn's id."""
    blocks = chain(*(parts or ((session or turn_id, 1),)))
    return Turn(
        id=turn_id,
        session_id=session or turn_id,
        family_id=family,
        tenant="t",
        model="m",
        arrived_at=at,
        blocks=blocks,
        chars=len(blocks) * BLOCK_CHARS,
        kind=kind,
        remaining_turns=remaining,
        max_wait_s=max_wait_s,
        deadline_at=deadline_at,
        priority_class=priority_class,
        is_retry=is_retry,
        excluded=excluded,
    )


def done(turn_id: str, prompt_tokens: int | None = None, output_tokens: int | None = 0) -> Left:
    """The turn's answer is complete."""
    return Left(turn_id, Ending.COMPLETE, Usage(prompt_tokens, None, output_tokens))
