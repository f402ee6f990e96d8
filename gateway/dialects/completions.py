"""`/v1/completions`: raw prompts, one or many."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.joining import STEP_CHARS
from gateway.core.reply import Reply
from gateway.core.slices import Steps, finished
from gateway.dialects import base, canonical
from gateway.dialects.base import Chunks, Dialect, Prompt, Script, chunks
from gateway.dialects.canonical import NO_TOOLS, ToolList
from gateway.dialects.description import CallDescription

PATH = "/v1/completions"
_SHAPES = base.COMMON | {"prompt": base.TEXT_OR_LIST}

_TURN_START = re.compile(r"<\|(?:im_start|start_header_id|start|system|user|assistant)\|>|\[INST\]")
"""Where the templates of Qwen, Llama 3, gpt-oss, GLM and Mistral begin a message."""
MOST_TURNS = 4_000
"""Messages of one rendered prompt. What follows is in the last: a million of them would take seconds."""
_SYSTEM_START = re.compile(r"<\|(?:im_start\|>|start_header_id\|>|start\|>)?system\b")


class Completions(Dialect):
    name = "completions"
    description = CallDescription(
        "A prompt, or a list",
        {"prompt": {"type": ["string", "array"]}},
        ["prompt"],
        {"max_tokens": 16, "prompt": ["a", "b"]},
    )
    is_conversation = True
    operation = "text_completion"

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, _SHAPES, required="prompt")

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        """A prompt that a client rendered itself is cut where its template begins a message; a token prompt is one
        message. Several prompts are answered apart: their common prefix is the system text, which counts once, and
        the rest of each is a message."""
        return finished(self.script_in_steps(body, NO_TOOLS))

    def script_in_steps(self, body: Json, tools: ToolList) -> Steps[Script]:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        system = b""
        pieces: list[Any] = [prompt]
        if isinstance(prompt, str):
            pieces = yield from _turns_in_steps(prompt)
            if len(pieces) > 1 and _SYSTEM_START.match(pieces[0]):
                system = pieces.pop(0).encode()
        elif (prompts := self.prompts(body)) is not None:
            shared = common_prefix(min(prompts), max(prompts))
            pieces = [prompt[len(shared) :] for prompt in prompts]
            system = (
                shared.encode(errors="replace") if isinstance(shared, str) else canonical.message("", {"": shared})
            )
        elif isinstance(prompt, list) and not any(isinstance(item, int) for item in prompt):
            pieces = prompt
        messages = []
        for piece in pieces:
            if isinstance(piece, str) and len(piece) <= STEP_CHARS:  # nearly all
                messages.append(canonical.message("prompt", {"content": piece}))
            else:
                messages.append((yield from canonical.message_in_steps("prompt", {"content": piece})))
            yield
        return Script(system=system, messages=tuple(messages))

    def prompts(self, body: Json) -> list[Prompt] | None:
        prompts = body.get("prompt")
        if not isinstance(prompts, list) or len(prompts) < 2:
            return None
        return prompts if all(isinstance(p, str) for p in prompts) or all(map(_is_tokens, prompts)) else None

    def num_prompts(self, body: Json) -> int:
        """Return the number of its prompts: also of those that engines with lax parsers take for tokens, such as
        `[[1.0], [2.0]]`, and of vLLM's embedded ones."""
        prompts, embedded = body.get("prompt"), body.get("prompt_embeds")
        num = len(embedded) if isinstance(embedded, list) else 0
        if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
            return num + len(prompts)
        return num + 1

    def read(self, event: Json, reply: Reply) -> None:
        """Of several choices (`n`, several prompts) only the first is read."""
        reply.model = fields.text(event, "model") or reply.model
        for choice in canonical.objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                reply.has_other_answers = True
                reply.num_other_chars += len(fields.text(choice, "text") or "")
                continue
            reply.written.append(fields.text(choice, "text") or "")
            finish = fields.text(choice, "finish_reason")
            if finish is not None:
                reply.finish_reason = finish
                reply.is_complete = True

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Chunks:
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
        return chunks(answer_id, model, created_at, "text_completion", choice)


# ---- prompts


_WINDOW_CHARS, _LONGEST_START = 256 * 1024, len("<|start_header_id|>")
"""Searched in one step, and the characters that may stand across its end."""


def _turns_in_steps(prompt: str) -> Steps[list[str]]:
    """Return a rendered prompt, cut where its template begins a message."""
    starts = {0, len(prompt)}
    for begin in range(0, len(prompt), _WINDOW_CHARS):
        if len(starts) > MOST_TURNS:
            break
        end = begin + _WINDOW_CHARS + _LONGEST_START - 1
        # An expression takes ten times as long as this for a text without a beginning.
        if prompt.find("<|", begin, end) >= 0 or prompt.find("[INST]", begin, end) >= 0:
            starts.update(match.start() for match in _TURN_START.finditer(prompt, begin, end))
        yield
    starts.remove(len(prompt))
    kept = [*sorted(starts)[:MOST_TURNS], len(prompt)]
    return [prompt[start:stop] for start, stop in pairwise(kept)]


CHARS_PER_TOKEN = 4


_TOKEN_TYPES = frozenset((int, bool))
"""JSON makes no other type of `int`."""


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and _TOKEN_TYPES.issuperset(map(type, prompt))


def num_chars(prompt: Prompt) -> int:
    """Return the length of a prompt; of tokens, about."""
    return len(prompt) if isinstance(prompt, str) else CHARS_PER_TOKEN * len(prompt)


def common_prefix(a: Prompt, b: Prompt) -> Prompt:
    """Return the longest beginning that both prompts share."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return a[:low]
