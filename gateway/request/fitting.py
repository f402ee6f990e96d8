"""How many output tokens fit: clients send `max_tokens` for the model that they assume, not for the real one."""

from __future__ import annotations

import re
from dataclasses import dataclass

FEWEST_USEFUL_TOKENS = 256
"""Below this an answer is cut at once; the engine's 400 serves an agent better, since it makes it compact."""
CHARS_PER_TOKEN = 3
"""A careful guess for a whole prompt, where the engine has not counted it."""
MOST_CHARS_PER_TOKEN = 8
"""No tokeniser of current models covers more over a whole prompt."""

# Engines quote what the client sent: a run of digits is looked at once, however long it is.
_LIMIT = re.compile(r"context length (?:is|of) (?:only )?(\d{1,9})(?!\d)")
_COUNTED = re.compile(
    r"(at least )?(?<!\d)(\d{1,9}) (?:input tokens|in the messages|in the prompt|tokens from the input)"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """What to send instead of the client's bound."""

    tokens: int | None
    """None: send no bound, and the engine fills what is left of its context (chat and responses do)."""


def before_asking(asked_tokens: int, chars: int, max_model_len: int, may_omit: bool) -> Bound | None:
    """None: leave the bound as it is, since it may fit. `chars` is the length of the prompt."""
    if asked_tokens + chars // MOST_CHARS_PER_TOKEN < max_model_len:
        return None
    return _guessed(asked_tokens, chars, max_model_len, may_omit)


def after_refusal(message: str, asked_tokens: int, chars: int, may_omit: bool) -> Bound | None:
    """What to try after a 400 with this message. None: the 400 stands, since it is not about the output, or the
    prompt leaves no useful room.

    Engines count the prompt exactly, or stop counting as soon as it cannot fit, and then say "at least".
    """
    limit = _LIMIT.search(message)
    if limit is None or asked_tokens <= 0:
        return None
    counted = _COUNTED.search(message)
    if counted is not None and not counted[1]:
        return _useful(asked_tokens, int(limit[1]) - int(counted[2]))
    return _guessed(asked_tokens, chars, int(limit[1]), may_omit)


def _guessed(asked_tokens: int, chars: int, max_model_len: int, may_omit: bool) -> Bound | None:
    return Bound(None) if may_omit else _useful(asked_tokens, max_model_len - chars // CHARS_PER_TOKEN)


def _useful(asked_tokens: int, room_tokens: int) -> Bound | None:
    return Bound(room_tokens) if FEWEST_USEFUL_TOKENS <= room_tokens < asked_tokens else None
