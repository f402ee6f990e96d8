"""`/v1/completions`: raw prompts."""

from __future__ import annotations

import re
from typing import Any

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply
from gateway.dialects import canonical, checks
from gateway.dialects.base import Script, Tools
from gateway.dialects.openai_format import Chunks, OpenAiFormat, chunks
from gateway.dialects.prompt_parts import common_prefix, prompts_of

_SHAPES = checks.COMMON | {"prompt": checks.TEXT_OR_LIST}

_TURN_START = re.compile(r"(?=<\|(?:im_start|start_header_id|start|system|user|assistant)\|>|\[INST\])")
"""Where the templates of Qwen, Llama 3, gpt-oss, GLM and Mistral begin a message."""
_SYSTEM_START = re.compile(r"<\|(?:im_start\|>|start_header_id\|>|start\|>)?system\b")


class Completions(OpenAiFormat):
    name = "completions"
    is_conversation = True
    conversation_key = ""

    def check(self, body: Json) -> Failure | None:
        return checks.wrong_field(body, _SHAPES, required="prompt")

    def script(self, body: Json, tools: Tools | None = None) -> Script:
        """A prompt that a client rendered itself is cut where its template begins a message; a token prompt is one
        message. Of several prompts, which are answered apart, what they have in common is the system text, and the
        rest of each is a message: so it counts once."""
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
        return Script(tools=(), system=system, messages=messages, offers_tools=False, tool_names=())

    def read(self, event: Json, reply: Reply) -> None:
        """Of several choices (`n`, several prompts) only the first is read."""
        reply.model = fields.text(event, "model") or reply.model
        for choice in canonical.objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                continue
            reply.written.add(fields.text(choice, "text") or "")
            finish = fields.text(choice, "finish_reason")
            if finish is not None:
                reply.finish_reason = finish
                reply.is_complete = True

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Chunks:
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
        return chunks(answer_id, model, created_at, "text_completion", choice)
