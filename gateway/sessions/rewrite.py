"""Takes volatile spans out of system texts, where the operator asked for it: strips them, or moves them behind the
first user message. Bytes are cut from the request as it came; nothing is written anew."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.core.fields import Json
from gateway.core.json_edit import Path, locate, without
from gateway.dialects.base import Dialect
from gateway.exchange import Exchange, Payload
from policies.recognition.prefix_breaks import Cuts, Found, Volatile

_MODEL_SPOKE = ("function_call", "custom_tool_call", "reasoning")
_NOTHING_LEFT = b'" "'
"""Some engines refuse an empty text."""


@dataclass(slots=True)
class _Text:
    """One string of the system text."""

    place: Path
    text: bytes
    cuts: Cuts = ()

    @property
    def left(self) -> bytes:
        return b"".join(_apart(self.text, self.cuts)[0])

    @property
    def taken(self) -> list[bytes]:
        return _apart(self.text, self.cuts)[1]


class Rewrite:
    """Changes requests before anybody looks at what they say, so that all the rest sees what the engine will."""

    def __init__(self, moves: bool, patterns: Iterable[str], kinds: Collection[str]) -> None:
        self._moves = moves
        self._patterns = [re.compile(pattern, re.MULTILINE) for pattern in patterns]
        self._learned = Volatile(kinds)

    def learn(self, found: Found) -> None:
        """A first prompt, as it was sent, broke off from its siblings."""
        if found.broken is not None:
            for gap in found.broken.gaps:
                self._learned.learn(gap, found.weight)

    def apply(self, exchange: Exchange) -> Payload:
        """Return the payload without the spans, the same ones for every turn of a session, and note that for the
        receipt."""
        texts = list(_system_texts(exchange.dialect, exchange.payload.body))
        for text in texts:
            text.cuts = _merged(found for pattern in self._patterns for found in _matches(pattern, text.text))
        self._cut_learned(exchange, texts)
        changed = [text for text in texts if text.cuts]
        if not changed:
            return exchange.payload
        taken = [span for text in changed for span in text.taken]
        changes = {text.place: text.cuts if text.left else None for text in changed}
        user, moved = None, b""
        # What a stored answer follows on from has been told already.
        if self._moves and exchange.dialect.stateful_id(exchange.payload.body) is None:
            moved = b"\n".join(map(bytes.strip, taken))
            user = _first_user_text(exchange.dialect, exchange.payload.body)
            if user is None:
                return exchange.payload
        raw = _edited(exchange.payload.raw, changes, user, moved)
        verb = "moved to the first user message" if self._moves else "stripped"
        exchange.note(f"{len(taken)} volatile spans of the system text, {sum(map(len, taken))} bytes, {verb}")
        return replace(exchange.payload, raw=raw, body=orjson.loads(raw))

    def _cut_learned(self, exchange: Exchange, texts: Sequence[_Text]) -> None:
        """Learned spans lie in the system text as a whole, and in what the patterns leave of it."""
        left = [(text, text.left) for text in texts]
        left = [(text, rest) for text, rest in left if rest]
        owner = owner_of(exchange)
        whole = b"\n".join(rest for _, rest in left)
        offset = 0
        found = self._learned.cuts(owner, whole, not _has_history(exchange)) if whole else ()
        starts, ends = [start for start, _ in found], [end for _, end in found]
        for text, rest in left if found else ():
            size = len(rest)
            inside = found[bisect_right(ends, offset) : bisect_left(starts, offset + size)]
            cuts = [(max(a - offset, 0), min(b - offset, size)) for a, b in inside]
            text.cuts = _merged((*text.cuts, *_before(text.cuts, cuts)))
            offset += size + 1


def owner_of(exchange: Exchange) -> int:
    """Tenant and model: nothing is compared or learned across them."""
    return hash((exchange.caller.tenant, exchange.payload.engine_model))


def _system_texts(dialect: Dialect, body: Json) -> Iterator[_Text]:
    for key in dialect.system_keys:
        yield from _texts((key,), body.get(key))
    conversation = body.get(dialect.history_key)
    for index, message in enumerate(conversation if isinstance(conversation, list) else ()):
        if message.get("role") not in ("system", "developer"):
            return
        yield from _texts((dialect.history_key, index, "content"), message.get("content"))


def _texts(place: Path, value: Any) -> Iterator[_Text]:
    """The strings of a content: itself, or those of its text parts."""
    if isinstance(value, str):
        yield _Text(place, value.encode())
    for index, part in enumerate(value if isinstance(value, list) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield _Text((*place, index, "text"), part["text"].encode())


def _first_user_text(dialect: Dialect, body: Json) -> Path | None:
    """The last string of the first user message."""
    key = dialect.history_key
    conversation = body.get(key)
    if isinstance(conversation, str):
        return (key,)
    for index, message in enumerate(conversation or ()):
        if message.get("role") == "user":
            texts = list(_texts((key, index, "content"), message.get("content")))
            return texts[-1].place if texts else None
    return None


def _has_history(exchange: Exchange) -> bool:
    """Whether the model has spoken in it."""
    body = exchange.payload.body
    conversation = body.get(exchange.dialect.history_key)
    return exchange.dialect.stateful_id(body) is not None or any(
        message.get("role") == "assistant" or message.get("type") in _MODEL_SPOKE
        for message in (conversation if isinstance(conversation, list) else ())
    )


def _edited(raw: bytes, changed: dict[Path, Cuts | None], user: Path | None, moved: bytes) -> bytes:
    """`raw` with strings cut (None: emptied) and `moved` at the end of the string at `user`."""
    spans = locate(raw, [*changed, *((user,) if user is not None and moved else ())])
    edits = []
    for place, cuts in changed.items():
        start, end = spans[place]
        edits.append((start, end, _NOTHING_LEFT if cuts is None else without(raw[start:end], cuts)))
    if user is not None and moved:
        _, end = spans[user]
        edits.append((end - 1, end - 1, b"\\n\\n" + orjson.dumps(moved.decode())[1:-1]))
    kept, done = [], 0
    for start, end, text in sorted(edits):
        kept += [raw[done:start], text]
        done = end
    return b"".join((*kept, raw[done:]))


def _apart(text: bytes, cuts: Cuts) -> tuple[list[bytes], list[bytes]]:
    """What stays and what goes."""
    kept, done = [], 0
    for start, end in cuts:
        kept.append(text[done:start])
        done = end
    return [*kept, text[done:]], [text[start:end] for start, end in cuts]


def _matches(pattern: re.Pattern[str], text: bytes) -> Iterator[tuple[int, int]]:
    """Where it matches, in bytes, which are never part of a character."""
    told = text.decode()
    done = end = 0
    for match in pattern.finditer(told):
        start = end + len(told[done : match.start()].encode())
        end = start + len(match[0].encode())
        yield start, end
        done = match.end()


def _merged(cuts: Iterable[tuple[int, int]]) -> Cuts:
    """In order, and apart from each other."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(cut for cut in cuts if cut[0] < cut[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _before(gone: Cuts, cuts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Cuts of a text from which something is gone, as cuts of the whole one."""
    # Where in what is left each gone piece stood, and how much is gone up to there.
    seams, gone_bytes = [], [0]
    for start, end in gone:
        seams.append(start - gone_bytes[-1])
        gone_bytes.append(gone_bytes[-1] + end - start)
    for start, end in cuts:
        yield start + gone_bytes[bisect_right(seams, start)], end + gone_bytes[bisect_left(seams, end)]
