"""`/v1/completions`: raw prompts, one or many; and a list of prompts cut into parts that share prefixes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply
from gateway.dialects import base, canonical
from gateway.dialects.base import Chunks, Dialect, Prompt, Script, chunks
from gateway.dialects.canonical import ToolList

PATH = "/v1/completions"
_SHAPES = base.COMMON | {"prompt": base.TEXT_OR_LIST}

_TURN_START = re.compile(r"(?=<\|(?:im_start|start_header_id|start|system|user|assistant)\|>|\[INST\])")
"""Where the templates of Qwen, Llama 3, gpt-oss, GLM and Mistral begin a message."""
_SYSTEM_START = re.compile(r"<\|(?:im_start\|>|start_header_id\|>|start\|>)?system\b")


class Completions(Dialect):
    name = "completions"
    is_conversation = True
    operation = "text_completion"

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, _SHAPES, required="prompt")

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        """A prompt that a client rendered itself is cut where its template begins a message; a token prompt is one
        message. Several prompts are answered apart: their common prefix is the system text, which counts once, and
        the rest of each is a message."""
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        system = b""
        pieces: list[Any] = [prompt]
        if isinstance(prompt, str):
            pieces = [piece for piece in _TURN_START.split(prompt) if piece]
            if len(pieces) > 1 and _SYSTEM_START.match(pieces[0]):
                system = pieces.pop(0).encode()
        elif (prompts := prompts_of(body)) is not None:
            shared = common_prefix(min(prompts), max(prompts))
            pieces = [prompt[len(shared) :] for prompt in prompts]
            system = (
                shared.encode(errors="replace") if isinstance(shared, str) else canonical.message("", {"": shared})
            )
        elif isinstance(prompt, list) and not any(isinstance(item, int) for item in prompt):
            pieces = prompt
        messages = tuple(canonical.message("prompt", {"content": piece}) for piece in pieces)
        return Script(system=system, messages=messages)

    def prompts(self, body: Json) -> list[Prompt] | None:
        return prompts_of(body)

    def read(self, event: Json, reply: Reply) -> None:
        """Of several choices (`n`, several prompts) only the first is read."""
        reply.model = fields.text(event, "model") or reply.model
        for choice in canonical.objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                continue
            reply.written.append(fields.text(choice, "text") or "")
            finish = fields.text(choice, "finish_reason")
            if finish is not None:
                reply.finish_reason = finish
                reply.is_complete = True

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Chunks:
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
        return chunks(answer_id, model, created_at, "text_completion", choice)


# ---- requests with several prompts

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Prompts that go out in one request."""

    indexes: tuple[int, ...]
    """Where each stands in the client's list."""
    prompts: tuple[Prompt, ...]

    def halves(self) -> tuple[PromptPart, PromptPart]:
        middle = len(self.indexes) // 2
        return (
            PromptPart(self.indexes[:middle], self.prompts[:middle]),
            PromptPart(self.indexes[middle:], self.prompts[middle:]),
        )

    def only(self, positions: Sequence[int]) -> PromptPart:
        """Those at these positions of the part."""
        return PromptPart(tuple(self.indexes[p] for p in positions), tuple(self.prompts[p] for p in positions))


def prompts_of(body: Json) -> list[Prompt] | None:
    """The prompts of a request for completions that has several; None for one prompt, or what is no such list."""
    prompts = body.get("prompt")
    if not isinstance(prompts, list) or len(prompts) < 2:
        return None
    return prompts if all(isinstance(p, str) for p in prompts) or all(map(_is_tokens, prompts)) else None


def cut(prompts: Sequence[Prompt], max_prompts: int, max_chars: int) -> Iterator[PromptPart]:
    """Parts of the prompts, in the order that puts common prefixes side by side. A part has at most `max_prompts`
    and, with what neighbours share counted once, `max_chars`; always one prompt."""
    order = sorted(range(len(prompts)), key=lambda index: prompts[index])
    part: list[int] = []
    chars = 0
    for index in order:
        prompt = prompts[index]
        own_chars = num_chars(prompt) - (num_chars(common_prefix(prompts[part[-1]], prompt)) if part else 0)
        if part and (len(part) == max_prompts or chars + own_chars > max_chars):
            yield _part(prompts, part)
            part, chars, own_chars = [], 0, num_chars(prompt)
        part.append(index)
        chars += own_chars
    if part:
        yield _part(prompts, part)


def _part(prompts: Sequence[Prompt], indexes: list[int]) -> PromptPart:
    return PromptPart(tuple(indexes), tuple(prompts[index] for index in indexes))


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)


def num_chars(prompt: Prompt) -> int:
    """Return the length of a prompt; of tokens, about."""
    return len(prompt) if isinstance(prompt, str) else CHARS_PER_TOKEN * len(prompt)


def common_prefix(a: Prompt, b: Prompt) -> Prompt:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return a[:low]
