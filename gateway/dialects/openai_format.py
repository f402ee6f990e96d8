"""What chat, completions and the plain paths share: errors, and usage as an event that must be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.dialects.failures import openai_error, read_error


class OpenAiFormat:
    """The methods of `Dialect` that do not depend on the conversation."""

    def wants_usage(self, body: Json) -> bool:
        return fields.flag(fields.obj(body, "stream_options"), "include_usage")

    def asking_for_usage(self, body: Json) -> Mapping[str, Any]:
        if not fields.flag(body, "stream") or self.wants_usage(body):
            return {}
        options = fields.obj(body, "stream_options") | {"include_usage": True}
        # Without `include_usage` it says nothing; next to ours it would put usage into every event.
        options.pop("continuous_usage_stats", None)
        return {"stream_options": options}

    def is_asked_usage(self, event: Json) -> bool:
        return event.get("choices") == [] and isinstance(event.get("usage"), dict)

    def max_tokens_key(self, body: Json) -> str | None:
        return "max_tokens" if body.get("max_tokens") is not None else None

    def stateful_id(self, body: Json) -> str | None:
        return None

    def is_error(self, event: Json) -> Failure | None:
        error = event.get("error")
        if error:
            return read_error(error)
        return read_error(event) if event.get("object") == "error" else None

    def error_body(self, failure: Failure) -> bytes:
        return orjson.dumps({"error": openai_error(failure)})

    def error_event(self, failure: Failure) -> bytes:
        return sse.event(self.error_body(failure))


@dataclass(frozen=True, slots=True)
class Chunks:
    """An `Opening` of a stream of chunks, each of which names its answer."""

    name: Json
    """`id`, `created` and `model`, which every chunk repeats."""
    empty: bytes
    """A whole event that says nothing but the name."""

    def keep_alive(self) -> bytes:
        return self.empty

    def joined(self, event: bytes, parsed: Json) -> bytes:
        changed = {key: value for key, value in self.name.items() if parsed.get(key, value) != value}
        return sse.event(orjson.dumps(parsed | changed)) if changed else event

    def error_event(self, failure: Failure) -> bytes:
        return OpenAiFormat().error_event(failure)


def chunks(answer_id: str, model: str, created_at: int, kind: str, choice: Json) -> Chunks:
    """`choice`: one that says nothing."""
    name = {"id": answer_id, "created": created_at, "model": model}
    return Chunks(name, sse.event(orjson.dumps({**name, "object": kind, "choices": [choice]})))
