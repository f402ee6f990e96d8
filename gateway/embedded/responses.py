"""`/v1/responses` on the embedded engine: requests as chats, and answers as items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import orjson

from gateway.core import sse
from gateway.core.fields import Json, excerpt, flag, items, obj, text
from gateway.embedded.answer import Delta, PlannedAnswer
from gateway.embedded.jobs import bad_request
from gateway.embedded.scripts import Offered, OfferedTool
from gateway.embedded.wire import Wire, call_of
from policies.recognition.prompts import SPEAKERS

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = ("function_call_output", "custom_tool_call_output")
_SAME = ("model", "stream", "priority", "cache_salt", "seed", "structured_outputs", "embedded_script")
_ECHOED = (
    *("instructions", "metadata", "max_output_tokens", "parallel_tool_calls", "previous_response_id"),
    *("prompt_cache_key", "reasoning", "service_tier", "store", "temperature", "text", "tool_choice", "tools"),
    *("top_p", "truncation", "user"),
)
_DEFAULTS: Json = {
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
}


# ---- requests


def chat_of_response(body: Json) -> Json:
    """Return the chat request that means the same. Raises Refusal."""
    for key in ("previous_response_id", "conversation", "prompt"):
        if body.get(key) is not None:
            raise bad_request(f"The embedded engine stores no responses and prompts: {key} is not served.", key)
    if flag(body, "background"):
        raise bad_request("The embedded engine runs no responses in the background.", "background")
    chat: Json = {key: body[key] for key in _SAME if key in body}
    messages = list(_messages(body))
    instructions = text(body, "instructions")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    if not items(body, "input") and not text(body, "input"):
        raise bad_request("input must be a text or a list that is not empty.", "input")
    chat["messages"] = messages
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    if (wanted := obj(obj(body, "text"), "format")) and text(wanted, "type") != "text":
        chat["response_format"] = {"type": wanted.get("type"), "json_schema": {"schema": wanted.get("schema")}}
    if offered := offered_in_response(body):
        chat["tools"] = [_as_function(name, tool) for name, tool in offered.items()]
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    return chat


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and text(choice, "type") == "allowed_tools":
        return choice.get("mode") or "auto"
    if isinstance(choice, dict) and text(choice, "name") is None:
        raise bad_request(f"The embedded engine has no tool {excerpt(str(choice.get('type')))!r}.", "tool_choice")
    return choice


def _messages(body: Json) -> Iterator[Json]:
    """Yield the messages of the input. A run of items of the model is one message, as it was generated."""
    if (plain := text(body, "input")) is not None:
        yield {"role": "user", "content": plain}
        return
    listed = [item for item in items(body, "input") if isinstance(item, dict) and item.get("type") != "reasoning"]
    for is_of_model, run in groupby(listed, key=_is_of_model):
        if is_of_model:
            yield _answer_message(list(run))
        else:
            yield from map(_message, run)


def _is_of_model(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") in SPEAKERS


def _answer_message(run: list[Json]) -> Json:
    contents = [_said(item) for item in run if item.get("type") not in _CALLS]
    parts: list[Any] = []
    for content in contents:
        parts += [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else []
    calls = [
        {"function": {"name": _flat_name(item), "arguments": text(item, _CALLS[item["type"]]) or ""}}
        for item in run
        if item.get("type") in _CALLS
    ]
    return {"role": "assistant", "content": parts, **({"tool_calls": calls} if calls else {})}


def _said(item: Json) -> Any:
    """Return the content of a message; any other item, such as a search, as its text."""
    return item.get("content") if item.get("role") == "assistant" else orjson.dumps(item).decode()


def _message(item: Json) -> Json:
    kind = text(item, "type") or "message"
    if kind in _RESULTS:
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if kind == "item_reference":
        raise bad_request("The embedded engine stores no responses: item_reference is not served.", "input")
    if kind == "message":
        return {"role": item.get("role"), "content": item.get("content")}
    return {"role": "user", "content": orjson.dumps(item).decode()}


def _flat_name(item: Json) -> str:
    namespace, name = text(item, "namespace"), text(item, "name") or ""
    return f"{namespace}__{name}" if namespace else name


def offered_in_response(body: Json) -> dict[str, OfferedTool]:
    """Return the tools that a model can call, those in a namespace under their flat names. Tools that OpenAI's
    servers run are left out."""
    found: dict[str, OfferedTool] = {}
    for tool in (tool for tool in items(body, "tools") if isinstance(tool, dict)):
        kind, name = text(tool, "type"), text(tool, "name")
        if kind == "namespace" and name:
            for inner in items(tool, "tools"):
                if isinstance(inner, dict) and (inner_name := text(inner, "name")):
                    schema = inner.get("parameters") or {}
                    found[f"{name}__{inner_name}"] = OfferedTool(inner_name, schema, namespace=name)
        elif kind in ("function", "custom") and name:
            found[name] = OfferedTool(name, tool.get("parameters") or {}, is_custom=kind == "custom")
    return found


def _as_function(name: str, tool: OfferedTool) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": tool.parameters}}


# ---- answers


class ResponsesWire(Wire):
    """One response, whose items come one after the other."""

    def __init__(self, number: str, created_at: int, model: str, body: Json, offered: Offered) -> None:
        """`number`: what the ids of this answer end with."""
        self._number = number
        self._offered = offered
        said = {key: value for key in _ECHOED if (value := body.get(key)) is not None}
        self._response = {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": created_at,
            "model": model,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "usage": None,
            **_DEFAULTS,
            **said,
            "output": [],
        }
        self._num_events = 0
        self._items: list[Json] = []
        """Those that are over."""
        self._open: Json | None = None
        """The item whose text comes."""
        self._status = "completed"

    def opening(self, index: int, usage: Json) -> Iterator[bytes]:
        begun = self._response | {"status": "in_progress"}
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def events(self, index: int, deltas: Sequence[Delta]) -> Iterator[bytes]:
        for (call, name, call_id), run in groupby(deltas, key=call_of):
            written = "".join(delta.text for delta in run)
            if name is not None:
                yield from self._close_item()
                yield from self._open_item(self._call_item(name, call_id))
            elif call is None and self._open is None:
                yield from self._open_item(self._message_item(len(self._items)))
            if written and self._open is not None:
                yield self._text_event(self._open, "delta", delta=written)
                self._append(self._open, written)

    def closing(self, index: int, answer: PlannedAnswer) -> Iterator[bytes]:
        if self._open is None and not self._items:
            yield from self._open_item(self._message_item(0))
        self._status = _status(answer)
        yield from self._close_item()

    def ending(self, usage: Json, is_wanted: bool) -> Iterator[bytes]:
        response = self._ended(self._status, self._items, usage)
        yield self._event(f"response.{self._status}", response=response)

    def whole(self, answers: Sequence[PlannedAnswer], usage: Json) -> bytes:
        answer = answers[0]
        for _ in (*self.events(0, answer.deltas), *self.closing(0, answer)):
            pass
        return orjson.dumps(self._ended(self._status, self._items, usage))

    def _ended(self, status: str, output: list[Json], usage: Json) -> Json:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._response | {
            "status": status,
            "incomplete_details": details,
            "output": output,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
                "embedded_queue_ms": usage["embedded_queue_ms"],
            },
        }

    # ---- items

    def _message_item(self, place: int) -> Json:
        content = [{"type": "output_text", "text": "", "annotations": []}]
        return {"type": "message", "id": f"msg_{self._number}_{place}", "role": "assistant", "content": content}

    def _call_item(self, name: str, call_id: str | None) -> Json:
        tool, place = self._offered[name], len(self._items)
        kind = "custom_tool_call" if tool.is_custom else "function_call"
        ids = {"id": f"fc_{self._number}_{place}", "call_id": call_id or f"call_{self._number}_{place}"}
        named = {"namespace": tool.namespace} if tool.namespace else {}
        return {"type": kind, **ids, "name": tool.name, _CALLS[kind]: "", **named}

    def _open_item(self, item: Json) -> Iterator[bytes]:
        self._open = item
        shown = item | {"status": "in_progress"}
        is_message = item["type"] == "message"
        added = shown | {"content": []} if is_message else shown
        yield self._event("response.output_item.added", output_index=len(self._items), item=added)
        if is_message:
            part = dict(item["content"][0])
            yield self._place(item, "response.content_part.added", part=part)

    def _close_item(self) -> Iterator[bytes]:
        item, self._open = self._open, None
        if item is None:
            return
        if item["type"] == "message":
            part = item["content"][0]
            yield self._text_event(item, "done", text=part["text"])
            yield self._place(item, "response.content_part.done", part=part)
        else:
            key = _CALLS[item["type"]]
            yield self._text_event(item, "done", **{key: item[key]})
        item |= {"status": "completed" if self._status == "completed" else "incomplete"}
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)

    def _append(self, item: Json, written: str) -> None:
        if item["type"] == "message":
            item["content"][0]["text"] += written
        else:
            item[_CALLS[item["type"]]] += written

    def _text_event(self, item: Json, verb: str, **more: Any) -> bytes:
        """Return an event about the text of an item, or about the arguments of a call."""
        if item["type"] == "message":
            return self._place(item, f"response.output_text.{verb}", logprobs=[], **more)
        subject = "custom_tool_call_input" if item["type"] == "custom_tool_call" else "function_call_arguments"
        named = {"name": item["name"]} if verb == "done" and subject == "function_call_arguments" else {}
        about = {"item_id": item["id"], "output_index": len(self._items), **named}
        return self._event(f"response.{subject}.{verb}", **about, **more)

    def _place(self, item: Json, kind: str, **more: Any) -> bytes:
        return self._event(kind, item_id=item["id"], output_index=len(self._items), content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._num_events, **more}
        self._num_events += 1
        return sse.event(orjson.dumps(event), kind)


def _status(answer: PlannedAnswer) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"
