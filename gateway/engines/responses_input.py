"""What clients send to `/v1/responses` and an engine refuses with 400, said in a way that it takes. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gateway.engines.base import RESPONSES, Json, Repair

NONE = Repair()


def typed_messages(path: str, body: Json) -> Repair:
    """An assistant's list of parts says that it is a message. OpenAI's `type` is optional and OpenCode leaves it
    out; vLLM 0.32 and Dynamo 1.6 then match no item type."""
    items = body.get("input")
    if path != RESPONSES or not isinstance(items, list) or not any(map(_lacks_type, items)):
        return NONE
    typed = [{"type": "message", **item} if _lacks_type(item) else item for item in items]
    return Repair({"input": typed}, ("input: assistant messages were given their type",))


def without_tools(path: str, body: Json, types: Collection[str]) -> Repair:
    """Tools of types that the engine does not have are not offered to the model."""
    tools = body.get("tools")
    if path != RESPONSES or not isinstance(tools, list):
        return NONE
    kept = [tool for tool in tools if _type(tool) not in types]
    gone = sorted({str(_type(tool)) for tool in tools} & set(types))
    return Repair({"tools": kept}, (f"tools: {', '.join(gone)} left out",)) if gone else NONE


def without_grammars(path: str, body: Json) -> Repair:
    """Custom tools take any text: vLLM 0.32 runs them, but not under a grammar (Codex's `apply_patch`)."""
    tools = body.get("tools")
    if path != RESPONSES or not isinstance(tools, list) or not any(map(_has_grammar, tools)):
        return NONE
    free = [{**tool, "format": {"type": "text"}} if _has_grammar(tool) else tool for tool in tools]
    return Repair({"tools": free}, ("tools: custom tools lost their grammar",))


def _lacks_type(item: Any) -> bool:
    if not isinstance(item, dict) or item.get("type") is not None:
        return False
    return item.get("role") == "assistant" and isinstance(item.get("content"), list)


def _has_grammar(tool: Any) -> bool:
    return _type(tool) == "custom" and bool(_type(tool.get("format")) == "grammar")


def _type(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None
