"""An answer before it is generated: its tokens, and which deltas the client sees after how many of them."""

from __future__ import annotations

import random
import zlib
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gateway.embedded.prompt import CALL_TAIL, call_head
from gateway.embedded.script import ScriptedAnswer
from gateway.embedded.tokenizer import END_OF_TURN, tokens_of

_WORDS = tuple(vowel.join(pair) for vowel in "aeiou" for pair in ("bd", "dn", "fr", "gl", "km", "lp", "rt", "st"))
"""Three letters each: with a space, one token."""
_UNFINISHED = "length"


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer that is out once `at_token` tokens are."""

    at_token: int
    text: str
    call_index: int | None = None
    """None: content. Else this is a piece of that tool call's arguments."""
    call_name: str | None = None
    """Set on the first delta of a tool call alone."""


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: Sequence[bytes]
    deltas: Sequence[Delta]
    finish_reason: str


@dataclass(slots=True)
class _Segment:
    """A stretch of generated text and what of it is shown."""

    text: str
    call_index: int | None = None
    call_name: str | None = None
    is_shown: bool = field(default=True)


def answer_to(
    prompt: bytes, script: ScriptedAnswer | None, max_tokens: int, ignores_end: bool, natural_tokens: range
) -> Answer:
    """What the engine says to a prompt, cut at `max_tokens`.

    Filler is as long as the script says; else `max_tokens` when the end is ignored; else a number from
    `natural_tokens` that depends on the prompt alone.
    """
    seed = zlib.crc32(prompt)
    if script is not None:
        segments = _scripted(script, seed)
        ends = True
    else:
        num_tokens = max_tokens if ignores_end else natural_tokens[seed % len(natural_tokens)]
        segments = [_Segment(_filler(num_tokens, seed))]
        ends = not ignores_end
    tokens = tokens_of("".join(segment.text for segment in segments))
    deltas = list(_deltas(segments, tokens))
    if ends:
        tokens.append(END_OF_TURN)
    if len(tokens) > max_tokens or not ends:
        del tokens[max_tokens:]
        return Answer(tokens, [delta for delta in deltas if delta.at_token <= max_tokens], _UNFINISHED)
    return Answer(tokens, deltas, "tool_calls" if script is not None and script.tool_calls else "stop")


def _filler(num_tokens: int, seed: int) -> str:
    """Text of exactly that many tokens, with nothing at its ends that a client would strip."""
    words = random.Random(seed).choices(_WORDS, k=num_tokens)  # noqa: S311 - text, not secrets
    return " ".join(words) + "." if words else ""


def _scripted(script: ScriptedAnswer, seed: int) -> list[_Segment]:
    segments = [_Segment(script.content or _filler(script.output_tokens or 0, seed))]
    for index, (name, arguments) in enumerate(script.tool_calls):
        segments.append(_Segment(call_head(name), index, name))
        segments.append(_Segment(arguments, index))
        segments.append(_Segment(CALL_TAIL, is_shown=False))
    return segments


def _deltas(segments: list[_Segment], tokens: list[bytes]) -> Iterator[Delta]:
    ends = list(accumulate(map(len, tokens)))
    start = 0
    for segment in segments:
        raw = segment.text.encode(errors="replace")
        stop = start + len(raw)
        if segment.call_name is not None:
            yield Delta(bisect_right(ends, stop - 1) + 1, "", segment.call_index, segment.call_name)
        elif segment.is_shown:
            decoder = getincrementaldecoder("utf-8")()
            at = start
            while at < stop:
                token = bisect_right(ends, at)
                cut = min(ends[token], stop)
                if text := decoder.decode(raw[at - start : cut - start]):
                    yield Delta(token + 1, text, segment.call_index)
                at = cut
        start = stop
