"""Read token usage from an answer of any dialect: every engine kind answers in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core import fields
from policies.types import Usage


def usage_of(event: Mapping[str, Any]) -> Usage | None:
    """Usage in an answer body or stream event: at its top, in its `response`, or in its `message`.

    Anthropic's `input_tokens` leave out what was read from and written to the cache; `prompt_tokens` here is
    always the whole prompt.
    """
    raw = (
        fields.obj(event, "usage")
        or fields.obj(fields.obj(event, "response"), "usage")
        or fields.obj(fields.obj(event, "message"), "usage")
    )
    if not raw:
        return None
    if "prompt_tokens" in raw:
        cached = fields.integer(fields.obj(raw, "prompt_tokens_details"), "cached_tokens")
        return Usage(fields.integer(raw, "prompt_tokens"), cached, fields.integer(raw, "completion_tokens"))
    prompt, output = fields.integer(raw, "input_tokens"), fields.integer(raw, "output_tokens")
    if "input_tokens_details" in raw:
        return Usage(prompt, fields.integer(fields.obj(raw, "input_tokens_details"), "cached_tokens"), output)
    cached = fields.integer(raw, "cache_read_input_tokens")
    if prompt is not None:
        prompt += (cached or 0) + (fields.integer(raw, "cache_creation_input_tokens") or 0)
    return Usage(prompt, cached, output)
