"""Chat rendering: from messages and tools to the text that the engine reads, in the order of Qwen's templates.

System text, then tools, then messages, as `<|im_start|>role ... <|im_end|>`; tool calls in Hermes form. An
assistant message renders to exactly the text that was generated for it, so a session's history is append-only.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.core.fields import Json, items, obj, text


def rendered_chat(body: Json) -> str:
    """The prompt of a chat request, ending where the assistant begins."""
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
    """A tool call as the model writes it."""
    return call_head(name) + arguments + CALL_TAIL


def content_text(message: Json) -> str:
    """The text of a message; other parts stand as their JSON, so that they take their share of the prompt."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(text(part, "text") or orjson.dumps(part).decode() for part in parts if isinstance(part, dict))
