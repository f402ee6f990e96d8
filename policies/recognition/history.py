"""The earlier turns that a prompt tells of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from policies.recognition.prompts import is_said
from policies.types import History


def history(head_chars: int, messages: Sequence[bytes]) -> History | None:
    """Return the turns whose answers the messages hold; None where there is none.

    Messages of the model in a row are one answer. Those at the end are none: the model is to go on with them.
    `head_chars`: length of the system text and the tools.
    """
    said = list(map(is_said, messages))
    begins = [at for at, one in enumerate(said) if one and not (at and said[at - 1])]
    if begins and said[-1]:
        begins.pop()
    if not begins:
        return None
    ends = list(accumulate(map(len, messages), initial=head_chars))
    return History(len(begins), ends[begins[0]], ends[begins[-1]])
