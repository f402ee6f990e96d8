"""The earlier turns that a prompt tells of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from policies.recognition.prompts import SAID
from policies.types import History

_SPEAKERS = (*SAID, b'["local_shell_call"')


def history(head_chars: int, messages: Sequence[bytes]) -> History | None:
    """Return the turns whose answers the messages hold; None where there is none.

    Messages of the model in a row are one answer. Those at the end are none: the model is to go on with them.
    `head_chars`: length of the system text and the tools.
    """
    begins = [
        at
        for at in range(len(messages))
        if messages[at].startswith(_SPEAKERS) and not (at and messages[at - 1].startswith(_SPEAKERS))
    ]
    if begins and messages[-1].startswith(_SPEAKERS):
        begins.pop()
    if not begins:
        return None
    ends = list(accumulate(map(len, messages), initial=head_chars))
    return History(len(begins), ends[begins[0]], ends[begins[-1]])
