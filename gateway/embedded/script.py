"""What a request asks the engine to answer, so that any client can drive it through a scripted task.

Two ways, the first wins:
- a body field `embedded_script`;
- the same JSON after the word `embedded_script:` in a user message, for clients that nobody can change.

The JSON is one answer or a list of answers, one per turn. An answer is an object of
- `content`: the text; or `output_tokens`: that many tokens of filler;
- `tool_calls`: a list of {"name": ..., "arguments": object or string}, as far as the request offers these tools.

In a list, the turn is the number of assistant messages after the one that holds the script (in the whole
conversation for the body field); past the end, and without any script, the answer is filler text that depends on
the prompt alone. The last user message with a script counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.fields import Json, integer, items, obj, text
from gateway.embedded.prompt import content_text

MARKER = "embedded_script:"


class BadScript(ValueError):
    """The request holds a script that cannot be read."""


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    content: str
    output_tokens: int | None
    """Length of filler text in place of `content`. None: no filler."""
    tool_calls: tuple[tuple[str, str], ...]
    """Names and arguments, as the model writes them."""


def scripted_answer(body: Json) -> ScriptedAnswer | None:
    """The answer for this turn; None when the request leaves it to the engine. Raises BadScript."""
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
            calls.append((name, written))
    return ScriptedAnswer(text(script, "content") or "", integer(script, "output_tokens"), tuple(calls))
