"""Prompts and answers of the embedded engine: its tokenizer, its chat template, and answers as scripts state
them."""

from __future__ import annotations

import json
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

from gateway.core.fields import Json, integer, items, obj, text

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


# ---- scripts: the answer that a request states, so that any client can drive the engine through a task

MARKER = "embedded_script:"


class BadScript(ValueError):
    """The script of a request cannot be read."""


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    content: str
    output_tokens: int | None
    """Length of the filler text that takes the place of `content`. None: there is no filler."""
    tool_calls: tuple[tuple[str, str, str | None], ...]
    """Names, arguments as the model writes them, and ids. None: the engine makes one."""


def scripted_answer(body: Json) -> ScriptedAnswer | None:
    """Return the answer for this turn. None: the request leaves it to the engine. Raises BadScript."""
    messages = [m for m in items(body, "messages") if isinstance(m, dict)]
    script, position = body.get("embedded_script"), 0
    if script is None:
        script, position = _from_messages(messages or [{"role": "user", "content": body.get("prompt")}])
    if script is None:
        return None
    if isinstance(script, list):
        turn = sum(text(message, "role") == "assistant" for message in messages[position:])
        if turn >= len(script):
            return None
        script = script[turn]
    if not isinstance(script, dict):
        raise BadScript("embedded_script is an answer object or a list of them")
    return _answer(script, {text(obj(tool, "function"), "name") for tool in items(body, "tools")})


def _from_messages(messages: list[Json]) -> tuple[Any, int]:
    for position in range(len(messages) - 1, -1, -1):
        if text(messages[position], "role") != "user":
            continue
        _, marker, rest = content_text(messages[position]).rpartition(MARKER)
        if marker:
            try:
                return json.JSONDecoder().raw_decode(rest.lstrip())[0], position
            except ValueError as error:
                raise BadScript(f"no JSON after {MARKER} in a user message: {error}") from None
    return None, 0


def _answer(script: Json, offered: set[str | None]) -> ScriptedAnswer:
    calls = []
    for call in items(script, "tool_calls"):
        if not isinstance(call, dict) or (name := text(call, "name")) is None:
            raise BadScript("each of an answer's tool_calls is an object with a name")
        arguments = call.get("arguments", {})
        if name in offered:
            written = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            calls.append((name, written, text(call, "id")))
    return ScriptedAnswer(text(script, "content") or "", integer(script, "output_tokens"), tuple(calls))


# ---- planned answers

_WORDS = tuple(vowel.join(pair) for vowel in "aeiou" for pair in ("bd", "dn", "fr", "gl", "km", "lp", "rt", "st"))
"""Words of three letters: each is one token with its space."""
_UNFINISHED = "length"
NATURAL_TOKENS = range(32, 129)
"""Lengths of filler answers that neither a script nor the request bounds."""


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


def answer_to(prompt: bytes, script: ScriptedAnswer | None, max_tokens: int, ignores_end: bool) -> PlannedAnswer:
    """Return the answer to a prompt, cut at `max_tokens`.

    The script states the length of filler text. Without a script it is `max_tokens` where the end is ignored, else
    a number of `NATURAL_TOKENS` that depends on the prompt alone.
    """
    seed = zlib.crc32(prompt)
    if script is not None:
        segments = _scripted(script, seed)
        ends = True
    else:
        num_tokens = max_tokens if ignores_end else NATURAL_TOKENS[seed % len(NATURAL_TOKENS)]
        segments = [_Segment(_filler(num_tokens, seed))]
        ends = not ignores_end
    tokens = tokens_of("".join(segment.text for segment in segments))
    deltas = list(_deltas(segments, tokens))
    if ends:
        tokens.append(END_OF_TURN)
    if len(tokens) > max_tokens or not ends:
        del tokens[max_tokens:]
        return PlannedAnswer(tokens, [delta for delta in deltas if delta.at_token <= max_tokens], _UNFINISHED)
    return PlannedAnswer(tokens, deltas, "tool_calls" if script is not None and script.tool_calls else "stop")


def _filler(num_tokens: int, seed: int) -> str:
    """Return text of exactly that many tokens, without white space at its ends, which a client would strip."""
    words = random.Random(seed).choices(_WORDS, k=num_tokens)  # noqa: S311 - text, not secrets
    return " ".join(words) + "." if words else ""


def _scripted(script: ScriptedAnswer, seed: int) -> list[_Segment]:
    segments = [_Segment(script.content or _filler(script.output_tokens or 0, seed))]
    for index, (name, arguments, call_id) in enumerate(script.tool_calls):
        segments.append(_Segment(call_head(name), index, name, call_id))
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
