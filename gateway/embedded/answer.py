"""Prompts and answers of the embedded engine: its tokenizer, its chat template, and answers that are planned
before they are generated."""

from __future__ import annotations

import random
import re
import zlib
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import orjson

from gateway.core.fields import Json, items, obj, text
from gateway.embedded.sampler import WORDS

# ---- a tiny deterministic tokenizer: about four bytes per token, reversible, stable under appending
#
# A token never crosses a newline or a chat marker. So an answer that comes back in the next prompt is cut exactly
# as it was generated, and its blocks are found in the cache.

END_OF_TURN = b"<|im_end|>"

_TOKEN = re.compile(rb"<\|(?:im_start|im_end|endoftext)\|>|[^\n<]{0,3}\n|[^\n<]{1,4}|<")
_MARKERS = (b"<|endoftext|>", b"<|im_start|>", END_OF_TURN)
_MARKER_IDS = {marker: number for number, marker in enumerate(_MARKERS)}


def tokens_of(text: str) -> list[bytes]:
    """Return the tokens of a text as bytes."""
    return _TOKEN.findall(text.encode(errors="replace"))


def ids_of(tokens: Iterable[bytes]) -> list[int]:
    """Return a number per token that encodes its bytes and their count. It is below 2**33, so JSON keeps it
    exact."""
    return [_MARKER_IDS[t] if t in _MARKER_IDS else int.from_bytes(b"\1" + t, "big") for t in tokens]


def tokens_from(ids: Iterable[int]) -> list[bytes]:
    """Return the tokens of numbers that `ids_of` gave. Raises ValueError for a number that is no token."""
    return [_token(number) for number in ids]


def _token(number: int) -> bytes:
    if 0 <= number < len(_MARKERS):
        return _MARKERS[number]
    raw = number.to_bytes(5, "big") if 0 <= number < 2**33 else b""
    token = raw.lstrip(b"\0")
    if len(token) < 2 or token[0] != 1:
        raise ValueError(f"{number} is no token of this model")
    return token[1:]


def chain(tokens: Sequence[bytes], block_tokens: int, salt: str = "") -> list[int]:
    """Return an id per full block, which covers all tokens up to its end. Texts of different salt share no
    block."""
    last = hash(salt)
    ids = []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        last = hash((last, b"".join(tokens[end - block_tokens : end])))
        ids.append(last)
    return ids


# ---- the chat template


def rendered_chat(body: Json) -> str:
    """Return the prompt of a chat request, which ends where the assistant begins."""
    messages = [m for m in items(body, "messages") if isinstance(m, dict)]
    system = ""
    if messages and text(messages[0], "role") in ("system", "developer"):
        system = content_text(messages.pop(0))
    if tools := items(body, "tools"):
        listed = "".join(f"\n{orjson.dumps(tool).decode()}" for tool in tools)
        system += f"\n\n# Tools\n\nYou may call functions:\n<tools>{listed}\n</tools>"
    parts = [f"<|im_start|>system\n{system}<|im_end|>\n"] if system else []
    parts += map(_message, messages)
    return "".join(parts) + "<|im_start|>assistant\n"


def _message(message: Json) -> str:
    role, content = text(message, "role") or "user", content_text(message)
    if role == "tool":
        role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
    calls = (obj(call, "function") for call in items(message, "tool_calls") if isinstance(call, dict))
    content += "".join(call_text(text(c, "name") or "", text(c, "arguments") or "") for c in calls)
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def call_head(name: str) -> str:
    return f'\n<tool_call>\n{{"name": "{name}", "arguments": '


CALL_TAIL = "}\n</tool_call>"


def call_text(name: str, arguments: str) -> str:
    """Return a tool call as the model writes it."""
    return call_head(name) + arguments + CALL_TAIL


def content_text(message: Json) -> str:
    """Return the text of a message. Parts that are no text count with their JSON, so that they lengthen the
    prompt."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(text(part, "text") or orjson.dumps(part).decode() for part in parts if isinstance(part, dict))


# ---- planned answers

_UNFINISHED = "length"
NATURAL_TOKENS = range(32, 129)
"""Lengths of filler answers that neither a script nor the request bounds."""


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    content: str
    output_tokens: int | None
    """Length of the filler text that takes the place of `content`. None: there is no filler."""
    tool_calls: tuple[tuple[str, str | None, str | None], ...]
    """Names, arguments as the model writes them, and ids. None: arguments by the schema of the tool; an id of the
    engine's own."""
    calls_any_tool: bool = False
    """One call of some offered tool takes the place of `tool_calls`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where an answer ends besides its own end."""

    texts: tuple[str, ...] = ()
    is_shown: bool = False
    """Whether the text that ended the answer belongs to it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer that the client gets once `at_token` tokens are generated."""

    at_token: int
    text: str
    call_index: int | None = None
    """The tool call whose arguments these are. None: this is content."""
    call_name: str | None = None
    """Set on the first delta of a tool call only, as is the id."""
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedAnswer:
    """An answer before it is generated."""

    tokens: Sequence[bytes]
    deltas: Sequence[Delta]
    finish_reason: str
    stop_text: str | None = None
    """The text that ended it."""

    def text(self, call_index: int | None = None) -> str:
        """Return the content, or the arguments of one tool call."""
        return "".join(delta.text for delta in self.deltas if delta.call_index == call_index)


@dataclass(slots=True)
class _Segment:
    """A stretch of generated text. Parts of it are shown to the client."""

    text: str
    call_index: int | None = None
    call_name: str | None = None
    call_id: str | None = None
    is_shown: bool = True


def answer_to(
    prompt: bytes,
    script: ScriptedAnswer | None,
    max_tokens: int,
    ignores_end: bool,
    stop: Stop = Stop(),
    seed_text: bytes = b"",
) -> PlannedAnswer:
    """Return the answer to a prompt, cut at the first of the `stop` texts and at `max_tokens`.

    The script states the length of filler text. Without a script it is `max_tokens` where the end is ignored, else
    a number of `NATURAL_TOKENS` that depends on the prompt and the `seed_text` alone.
    """
    seed = seed_of(prompt, seed_text)
    if script is not None:
        segments = _scripted(script, seed)
        ends = True
    else:
        num_tokens = max_tokens if ignores_end else NATURAL_TOKENS[seed % len(NATURAL_TOKENS)]
        segments = [_Segment(_filler(num_tokens, seed))]
        ends = not ignores_end
    tokens = tokens_of("".join(segment.text for segment in segments))
    stop_text = _cut(segments, tokens, stop)
    deltas = list(_deltas(segments, tokens))
    if stop_text is None and ends:
        tokens.append(END_OF_TURN)
    if len(tokens) > max_tokens or not (ends or stop_text is not None):
        del tokens[max_tokens:]
        return PlannedAnswer(tokens, [delta for delta in deltas if delta.at_token <= max_tokens], _UNFINISHED)
    calls_tools = script is not None and script.tool_calls and stop_text is None
    return PlannedAnswer(tokens, deltas, "tool_calls" if calls_tools else "stop", stop_text)


def seed_of(prompt: bytes, seed_text: bytes = b"") -> int:
    return zlib.crc32(seed_text, zlib.crc32(prompt))


def _cut(segments: list[_Segment], tokens: list[bytes], stop: Stop) -> str | None:
    """Shorten an answer to the first of the stop texts, and return it. The token that completes it is the last."""
    if not stop.texts:
        return None
    whole = "".join(segment.text for segment in segments)
    found = [(at, text) for text in stop.texts if (at := whole.find(text)) >= 0]
    if not found:
        return None
    start, stop_text = min(found)
    room = start + (len(stop_text) if stop.is_shown else 0)
    ends = list(accumulate(map(len, tokens)))
    num_bytes = len(whole[: start + len(stop_text)].encode(errors="replace"))
    del tokens[bisect_right(ends, num_bytes - 1) + 1 :]
    for segment in segments:
        segment.text = segment.text[:room]
        room -= len(segment.text)
        segment.is_shown &= bool(segment.text)
    segments[:] = [segment for segment in segments if segment.text]
    return stop_text


def _filler(num_tokens: int, seed: int) -> str:
    """Return text of exactly that many tokens, without white space at its ends, which a client would strip."""
    words = random.Random(seed).choices(WORDS, k=num_tokens)  # noqa: S311 - text, not secrets
    return " ".join(words) + "." if words else ""


def _scripted(script: ScriptedAnswer, seed: int) -> list[_Segment]:
    segments = [_Segment(script.content or _filler(script.output_tokens or 0, seed))]
    for index, (name, arguments, call_id) in enumerate(script.tool_calls):
        segments.append(_Segment(call_head(name), index, name, call_id))
        segments.append(_Segment("{}" if arguments is None else arguments, index))
        segments.append(_Segment(CALL_TAIL, is_shown=False))
    return segments


def _deltas(segments: list[_Segment], tokens: list[bytes]) -> Iterator[Delta]:
    ends = list(accumulate(map(len, tokens)))
    start = 0
    for segment in segments:
        raw = segment.text.encode(errors="replace")
        stop = start + len(raw)
        if segment.call_name is not None:
            at = bisect_right(ends, stop - 1) + 1
            yield Delta(at, "", segment.call_index, segment.call_name, segment.call_id)
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
