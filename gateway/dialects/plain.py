"""Paths without a conversation: embeddings, tokenize, detokenize."""

from __future__ import annotations

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply
from gateway.dialects import base
from gateway.dialects.base import Script, ToolList
from gateway.dialects.openai_format import Chunks, OpenAiFormat

_NOTHING = Script(tools=(), system=b"", messages=(), offers_tools=False, tool_names=())


class Plain(OpenAiFormat):
    is_conversation = False
    conversation_key = ""

    def __init__(self, name: str = "plain") -> None:
        self.name = name

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, base.COMMON)

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        return _NOTHING

    def read(self, event: Json, reply: Reply) -> None:
        reply.model = fields.text(event, "model") or reply.model
        reply.is_complete = True

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Chunks:
        return Chunks({}, b": waiting\n\n")  # never needed: these paths do not stream
