"""Scripted answers: what a request, its prompt or a file of rules states, so that any client can drive the engine
through a task.

docs/embedded.md describes the formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gateway.config.loading import read_document
from gateway.core.errors import ConfigError
from gateway.core.fields import Json, excerpt, flag, integer, items, text
from gateway.embedded.answer import ScriptedAnswer, content_text

MARKER = "embedded_script:"
ANY_TOOL = "any"


class BadScript(ValueError):
    """A script, of a request or in a file, cannot be read."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a request offers."""

    name: str
    """As the client knows it."""
    parameters: Any = field(default_factory=dict)
    """Its JSON schema."""
    is_custom: bool = False
    """Whether its argument is a plain text (Responses)."""
    namespace: str | None = None
    """Codex's group of tools that it belongs to."""


Offered = Mapping[str, OfferedTool]
"""Tools by the names that the model may call them by."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the engine answers to requests of a kind."""

    answers: Sequence[Json]
    """One per turn."""
    pattern: re.Pattern[str] | None = None
    """Found in a message of the user. None: any conversation."""
    offers: str | None = None
    """A tool that the request has to offer."""
    repeats: bool = False
    """Whether the answers begin again after the last."""


def scripted_answer(body: Json, offered: Offered, rules: Sequence[Rule] = ()) -> ScriptedAnswer | None:
    """Return the answer for this turn: by the request's field, its prompt, or the first rule that fits. None: the
    request leaves it to the engine. Raises BadScript."""
    messages = [m for m in items(body, "messages") if isinstance(m, dict)]
    messages = messages or [{"role": "user", "content": body.get("prompt")}]
    script, position = body.get("embedded_script"), 0
    if script is None:
        script, position = _from_messages(messages)
    if script is not None:
        answer = _answer_of_turn(script, messages[position:])
    else:
        answer = next((found for rule in rules if (found := _by_rule(rule, messages, offered)) is not None), None)
    return None if answer is None else _answer(answer, offered)


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


def _answer_of_turn(script: Any, since: Sequence[Json]) -> Json | None:
    if isinstance(script, list):
        turn = _num_answers(since)
        if turn >= len(script):
            return None
        script = script[turn]
    if not isinstance(script, dict):
        raise BadScript("embedded_script is an answer object or a list of them")
    return script


def _num_answers(messages: Sequence[Json]) -> int:
    return sum(text(message, "role") == "assistant" for message in messages)


def _answer(script: Json, offered: Offered) -> ScriptedAnswer:
    calls = []
    wanted = script.get("tool_calls")
    for call in wanted if isinstance(wanted, list) else ():
        if not isinstance(call, dict) or (name := text(call, "name")) is None:
            raise BadScript("each of an answer's tool_calls is an object with a name")
        if (tool := offered.get(name)) is not None:
            calls.append((name, _written(call.get("arguments"), tool), text(call, "id")))
    content = script.get("content") or ""
    if not isinstance(content, str):
        content = orjson.dumps(content).decode()
    calls_any = wanted == ANY_TOOL and bool(offered)
    return ScriptedAnswer(content, integer(script, "output_tokens"), tuple(calls), calls_any)


def _written(arguments: Any, tool: OfferedTool) -> str | None:
    """Return arguments as the model writes them. None: the script leaves them to the tool's schema."""
    if tool.is_custom and isinstance(arguments, dict):
        arguments = arguments.get("input")
    return arguments if arguments is None or isinstance(arguments, str) else orjson.dumps(arguments).decode()


# ---- rules

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_KEYS = {"match", "offers", "answers", "repeats"}
_ANSWER_KEYS = {"content", "output_tokens", "tool_calls"}


def rules_in(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a YAML or JSON file. Raises ConfigError."""
    try:
        return rules_from(read_document(path))
    except BadScript as error:
        raise ConfigError(f"embedded.script {path}: {error}") from None


def rules_from(document: Any) -> tuple[Rule, ...]:
    """Return rules of their parsed form. Raises BadScript."""
    if not isinstance(document, list):
        raise BadScript("a script is a list of rules, each with `answers`")
    return tuple(_rule(number, one) for number, one in enumerate(document, 1))


def _rule(number: int, one: Any) -> Rule:
    if not isinstance(one, dict) or not one.keys() <= _KEYS:
        raise BadScript(f"rule {number} is no object of {', '.join(sorted(_KEYS))}")
    answers = items(one, "answers")
    if not answers or not all(isinstance(answer, dict) and answer.keys() <= _ANSWER_KEYS for answer in answers):
        keys = ", ".join(sorted(_ANSWER_KEYS))
        raise BadScript(f"rule {number} needs `answers`: a list of objects with {keys}")
    for answer in answers:
        calls = answer.get("tool_calls", [])
        is_list = isinstance(calls, list) and all(isinstance(call, dict) and text(call, "name") for call in calls)
        if calls != ANY_TOOL and not is_list:
            raise BadScript(f"rule {number}: tool_calls are a list of objects with a name, or {ANY_TOOL!r}")
    try:
        pattern = re.compile(one["match"]) if one.get("match") is not None else None
    except (re.error, TypeError) as error:
        raise BadScript(f"rule {number}: match {excerpt(str(one['match']))!r} is no pattern: {error}") from None
    return Rule(answers, pattern, text(one, "offers"), flag(one, "repeats"))


def _by_rule(rule: Rule, messages: Sequence[Json], offered: Offered) -> Json | None:
    """Return the answer of a rule for this turn, with the parts of the match in its texts. None: the rule does not
    fit, or has no answer for the turn."""
    if rule.offers is not None and rule.offers not in offered:
        return None
    position, found = 0, None
    if rule.pattern is not None:
        for position in range(len(messages) - 1, -1, -1):
            if text(messages[position], "role") == "user":
                found = rule.pattern.search(content_text(messages[position]))
            if found is not None:
                break
        else:
            return None
    turn = _num_answers(messages[position:])
    if rule.repeats:
        turn %= len(rule.answers)
    if turn >= len(rule.answers):
        return None
    answer = rule.answers[turn]
    return answer if found is None else _filled(answer, {"0": found[0], **_groups(found)})


def _groups(found: re.Match[str]) -> dict[str, str]:
    groups = {str(number): part or "" for number, part in enumerate(found.groups(), 1)}
    return groups | {name: part or "" for name, part in found.groupdict().items()}


def _filled(value: Any, groups: Mapping[str, str]) -> Any:
    """Return a value with the parts of a match in place of `{1}` and `{name}`."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: groups.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [_filled(item, groups) for item in value]
    return {key: _filled(item, groups) for key, item in value.items()} if isinstance(value, dict) else value
