"""Prefix breaks of each family: found on first prompts, counted in tokens once the engine has read them."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.config.settings import IdentitySettings
from gateway.core.fields import Json
from gateway.core.json_edit import Path, locate, without
from gateway.dialects.base import Dialect, Script
from gateway.exchange import Exchange, Payload
from gateway.telemetry.metrics import Metrics
from policies.learning import TokenRatio
from policies.recognition.prefix_breaks import Break, Breaks, Cuts, Found, Volatile
from policies.recognition.prompts import SPEAKERS
from policies.types import SIDE

MAX_FAMILIES = 512


@dataclass(slots=True)
class BreakTally:
    """The cost of breaks for one family."""

    tenant: str
    sessions: int = 0
    """Sessions that were compared with a sibling."""
    breaks: int = 0
    turns: int = 0
    """Later turns whose system text breaks the prefix of the turn before."""
    wasted_tokens: int = 0
    last: Break | None = None
    last_share: float = 0.0


class PrefixBreaks:
    """The one owner of detector, tallies and rewrite. Synchronous, bounded, never keeps content."""

    def __init__(self, settings: IdentitySettings, metrics: Metrics, max_bytes: float = math.inf) -> None:
        self._breaks = Breaks(MAX_FAMILIES, max_bytes)
        self._tallies: OrderedDict[str, BreakTally] = OrderedDict()
        self._metrics = metrics
        self._rewrite: Rewrite | None = None
        if settings.volatile_spans != "report":
            moves = settings.volatile_spans == "move"
            self._rewrite = Rewrite(moves, settings.volatile_patterns, settings.volatile_learned)

    @property
    def num_bytes(self) -> int:
        """About the memory of the prompts that are compared."""
        return self._breaks.num_bytes

    def prepare(self, exchange: Exchange) -> Payload:
        """Return the payload without volatile spans, if the settings say so. Call it before the conversation is
        read."""
        return exchange.payload if self._rewrite is None else self._rewrite.apply(exchange)

    def recognised(self, exchange: Exchange, script: Script, tools_first: bool) -> Found | None:
        """Compare the first prompt of a session, as it will be sent, with its siblings', and a later one whose
        system text is another one with the turn before. None: it is neither, or there is nothing to compare."""
        of = exchange.recognition
        if of is None or of.is_retry or of.kind is SIDE:
            return None
        prompt = of.family_id, owner_of(exchange), script.tools, script.system, script.messages, tools_first
        if of.system_change is not None:
            return self._breaks.changed(*prompt, of.system_hash, of.system_change)
        if of.turn_index:
            return None
        found = self._breaks.saw(*prompt, of.system_hash)
        if found is not None and self._rewrite is not None:
            self._rewrite.learn(found)
        return found

    def finished(self, exchange: Exchange) -> None:
        """Count the break of an exchange that is over, if an engine has begun to answer it."""
        found = exchange.prefix_break
        if found is None or exchange.timings.first_byte_at is None:
            return
        tally = self._tallies.setdefault(found.family_id, BreakTally(exchange.caller.tenant))
        self._tallies.move_to_end(found.family_id)
        if len(self._tallies) > MAX_FAMILIES:
            self._tallies.popitem(last=False)
        if found.is_first:
            tally.sessions += found.weight
        if (broken := found.broken) is None:
            return
        chars = exchange.recognition.chars if exchange.recognition else 0
        wasted_tokens = found.weight * _wasted_tokens(broken, exchange, chars)
        if found.is_first:
            tally.breaks += found.weight
        else:
            tally.turns += found.weight
        tally.wasted_tokens += wasted_tokens
        tally.last, tally.last_share = broken, broken.at_chars / max(1, chars)
        self._metrics.prefix_breaks.add(found.weight, broken.kind)
        self._metrics.prefix_break_tokens.add(wasted_tokens, broken.kind)

    def joined(self, families: Iterable[Json], tenant: str | None) -> list[Json]:
        """Return the rows of a tenant's families with the cost of their breaks. A family without a row gets
        one."""
        rows = {row["family"]: row for row in families}
        for family_id, tally in self._tallies.items():
            if tenant in (None, tally.tenant) and tally.last is not None:
                row = rows.setdefault(family_id, {"family": family_id, "turns": 0, "sessions": {}, "states": {}})
                row["prefix_breaks"] = _row(tally, tally.last)
        return list(rows.values())


def _row(tally: BreakTally, last: Break) -> Json:
    return {
        "sessions": tally.sessions,
        "breaks": tally.breaks,
        "turns": tally.turns,
        "wasted_tokens": tally.wasted_tokens,
        "wasted_tokens_per_break": round(tally.wasted_tokens / (tally.breaks + tally.turns)),
        "last": {
            "kind": last.kind,
            "part": last.part,
            "at_chars": last.at_chars,
            "at_share": round(tally.last_share, 4),
            "span_chars": last.span_chars,
            "spans": last.num_spans,
            "shared_chars": last.shared_chars,
        },
    }


def _wasted_tokens(broken: Break, exchange: Exchange, chars: int) -> int:
    """Return the tokens of the text that siblings share behind the break, at most those that were not cached."""
    usage = exchange.reply.usage
    if usage.prompt_tokens is None:
        return round(broken.shared_chars * TokenRatio.PRIOR)
    tokens = broken.shared_chars * usage.prompt_tokens / max(1, chars)
    return round(min(tokens, usage.prompt_tokens - (usage.cached_tokens or 0)))


# ---- takes volatile spans out of system texts

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
    """Takes volatile spans out of requests: strips them, or moves them behind the first user message. That is done
    before a request is read, so that recognition sees what the engine will. Bytes are cut; nothing is written
    again."""

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
        return exchange.payload.with_text(raw, orjson.loads(raw))

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
    """Return a key of tenant and model: nothing is compared or learned across them."""
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
    """Return the strings of a content: itself, or those of its text parts."""
    if isinstance(value, str):
        yield _Text(place, value.encode())
    for index, part in enumerate(value if isinstance(value, list) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield _Text((*place, index, "text"), part["text"].encode())


def _first_user_text(dialect: Dialect, body: Json) -> Path | None:
    """Return the place of the last string of the first user message."""
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
        message.get("role") == "assistant" or message.get("type") in SPEAKERS
        for message in (conversation if isinstance(conversation, list) else ())
    )


def _edited(raw: bytes, changed: dict[Path, Cuts | None], user: Path | None, moved: bytes) -> bytes:
    """Return `raw` with strings cut (None: emptied) and `moved` at the end of the string at `user`."""
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
    """Return the parts of the text that stay, and those that are cut."""
    kept, done = [], 0
    for start, end in cuts:
        kept.append(text[done:start])
        done = end
    return [*kept, text[done:]], [text[start:end] for start, end in cuts]


def _matches(pattern: re.Pattern[str], text: bytes) -> Iterator[tuple[int, int]]:
    """Return where the pattern matches, in bytes at the borders of characters."""
    decoded = text.decode()
    done = end = 0
    for match in pattern.finditer(decoded):
        start = end + len(decoded[done : match.start()].encode())
        end = start + len(match[0].encode())
        yield start, end
        done = match.end()


def _merged(cuts: Iterable[tuple[int, int]]) -> Cuts:
    """Return the cuts in order, with overlaps merged."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(cut for cut in cuts if cut[0] < cut[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _before(gone: Cuts, cuts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return cuts of a text from which pieces are gone as cuts of the whole text."""
    # Where in what is left each gone piece stood, and how much is gone up to there.
    seams, gone_bytes = [], [0]
    for start, end in gone:
        seams.append(start - gone_bytes[-1])
        gone_bytes.append(gone_bytes[-1] + end - start)
    for start, end in cuts:
        yield start + gone_bytes[bisect_right(seams, start)], end + gone_bytes[bisect_left(seams, end)]
