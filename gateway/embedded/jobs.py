"""Requests to the embedded engine, checked and read, with the answers to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.core.fields import Json, excerpt, flag, integer, items, obj, text
from gateway.embedded.answer import (
    PlannedAnswer,
    ScriptedAnswer,
    Stop,
    answer_to,
    rendered_chat,
    seed_of,
    tokens_from,
    tokens_of,
)
from gateway.embedded.sampler import SchemaNotServed, sampled, text_of_pattern, words
from gateway.embedded.scripts import BadScript, Offered, OfferedTool, Rule, scripted_answer


class Refusal(Exception):
    """An error answer."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


def bad_request(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "BadRequestError", message, param)


MOST_ANSWERS = 128
"""Answers to one prompt."""


@dataclass(frozen=True, slots=True)
class Job:
    """A valid generation request: its prompt and the answers to it."""

    prompt: list[bytes]
    """Tokens."""
    answers: Sequence[PlannedAnswer]
    priority: int
    salt: str
    wants_stream: bool
    wants_usage: bool


def job_from(
    body: Json, is_chat: bool, max_model_len: int, offered: Offered | None = None, rules: Sequence[Rule] = ()
) -> Job:
    """Return the job of a request. `offered`: its tools, where it came in another format than chat's. Raises
    Refusal as vLLM does."""
    wants_stream, options = flag(body, "stream"), obj(body, "stream_options")
    if options and not wants_stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    priority = body.get("priority") or 0
    if not isinstance(priority, int):
        raise bad_request("priority must be a whole number; lower goes first.", "priority")
    prompt = prompt_tokens(body, is_chat)
    offered = offered_in(body) if offered is None else offered
    writer = _Writer(
        b"".join(prompt),
        max_tokens(body, len(prompt), max_model_len),
        flag(body, "ignore_eos"),
        _stop(body),
        offered,
        _tool_choice(body, offered),
        _constraint(body),
    )
    try:
        script = scripted_answer(body, offered, rules)
    except BadScript as error:
        raise bad_request(str(error), "embedded_script") from None
    seeds = _seeds(body)
    return Job(
        prompt,
        [writer.answer(script, seed) for seed in seeds],
        priority,
        text(body, "cache_salt") or "",
        wants_stream,
        wants_stream and flag(options, "include_usage"),
    )


def _seeds(body: Json) -> list[bytes]:
    """Return what tells the answers of a request from each other, and from those of another `seed`."""
    n = body.get("n", 1)
    n = 1 if n is None else n
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MOST_ANSWERS:
        raise bad_request(f"n must be a whole number from 1 to {MOST_ANSWERS}.", "n")
    if body.get("best_of") not in (None, n):
        raise bad_request("The embedded engine gives each answer that it computes: best_of must be n.", "best_of")
    seed = integer(body, "seed")
    first = b"" if seed is None else b"seed %d" % seed
    return [first + (b" answer %d" % index if index else b"") for index in range(n)]


def _stop(body: Json) -> Stop:
    texts = body.get("stop") or ()
    texts = (texts,) if isinstance(texts, str) else texts
    if not all(isinstance(one, str) and one for one in texts):
        raise bad_request("stop must be a text, or a list of texts that are not empty.", "stop")
    return Stop(tuple(texts), flag(body, "include_stop_str_in_output"))


def offered_in(body: Json) -> dict[str, OfferedTool]:
    """Return the tools of a chat request."""
    functions = (obj(tool, "function") for tool in items(body, "tools") if isinstance(tool, dict))
    named = ((text(function, "name"), function.get("parameters")) for function in functions)
    return {name: OfferedTool(name, parameters or {}) for name, parameters in named if name}


# ---- the prompt


def prompt_tokens(body: Json, is_chat: bool) -> list[bytes]:
    """Return the tokens of a request's prompt. Raises Refusal if it has none."""
    if is_chat:
        if not items(body, "messages"):
            raise bad_request("messages must be a list that is not empty.", "messages")
        return tokens_of(rendered_chat(body))
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tokens_of(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(number, int) for number in prompt):
        try:
            return tokens_from(prompt)
        except ValueError as error:
            raise bad_request(str(error), "prompt") from None
    raise bad_request("prompt must be one text, or one list of token ids, and not empty.", "prompt")


def max_tokens(body: Json, num_prompt_tokens: int, max_model_len: int) -> int:
    """Return the longest answer that a request allows. Raises Refusal if it does not fit behind the prompt."""
    key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    limit = integer(body, key)
    room = max_model_len - num_prompt_tokens
    if limit is None and room >= 1:
        return room
    if limit is not None and limit < 1:
        raise bad_request(f"{key} must be at least 1, got {limit}.", key)
    if limit is None or limit > room:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + (limit or 1)} tokens ({num_prompt_tokens} in the messages, {limit or 1} in the "
            "completion). Please reduce the length of the messages or completion.",
            key,
        )
    return limit


def check_model(body: Json, served: str) -> None:
    """Raises Refusal for the name of another model. A request without a model is served."""
    requested_model = text(body, "model")
    if requested_model is not None and requested_model != served:
        raise Refusal(404, "NotFoundError", f"The model `{requested_model}` does not exist.", "model")


# ---- what an answer has to keep to

_REQUIRED = "required"
_NO_CALLS = "none"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: str
    """auto, none or required."""
    names: tuple[str, ...]
    """The tools that may be called."""


def _tool_choice(body: Json, offered: Offered) -> ToolChoice:
    choice = body.get("tool_choice")
    choice = "auto" if choice is None else choice
    names = tuple(offered)
    if isinstance(choice, dict):
        name = text(obj(choice, "function"), "name") or text(choice, "name")
        if name is None or name not in offered:
            raise bad_request(
                f"tool_choice names {excerpt(str(name))!r}, which tools do not offer.", "tool_choice"
            )
        return ToolChoice(_REQUIRED, (name,))
    if choice not in ("auto", _NO_CALLS, _REQUIRED):
        raise bad_request(
            "tool_choice must be auto, none, required, or an object that names a function.", "tool_choice"
        )
    if choice == _REQUIRED and not offered:
        raise bad_request("tool_choice is required, and the request offers no tools.", "tool_choice")
    return ToolChoice(choice, names)


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the text of an answer keeps to: one of these."""

    schema: Any = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    param: str = "response_format"
    """The field that asked for it."""

    def text(self, seed: int) -> str:
        """Raises Refusal for what the sampler does not serve."""
        rng = random.Random(seed)  # noqa: S311 - text, not secrets
        if self.choices:
            return rng.choice(self.choices)
        try:
            if self.pattern is not None:
                return text_of_pattern(f"^(?:{self.pattern})$", rng)
            return orjson.dumps(sampled(self.schema, seed)).decode()
        except SchemaNotServed as error:
            raise bad_request(f"The embedded engine cannot keep to this: {error}.", self.param) from None
        except TypeError:
            raise bad_request("The schema holds a number beyond 64 bits.", self.param) from None


JSON_OBJECT: Json = {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}


def _constraint(body: Json) -> Constraint | None:
    """Return what `response_format`, `structured_outputs` or one of vLLM's earlier `guided_` fields ask for."""
    found = [_of_response_format(obj(body, "response_format"))] if body.get("response_format") else []
    wanted = {key: value for key, value in obj(body, "structured_outputs").items() if value not in (None, False)}
    found += [_of_guided(key, value, "structured_outputs") for key, value in wanted.items() if key in _GUIDED]
    for key in _GUIDED:
        if body.get(param := f"guided_{key}") is not None:
            found.append(_of_guided(key, body[param], param))
    found = [one for one in found if one is not None]
    if len(found) > 1:
        raise bad_request("Only one kind of structured output may be asked for at once.", "structured_outputs")
    return found[0] if found else None


_GUIDED = ("json", "json_object", "choice", "regex", "grammar", "structural_tag")


def _of_response_format(wanted: Json) -> Constraint | None:
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint(JSON_OBJECT)
    schema = obj(wanted, "json_schema").get("schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise bad_request(
            "response_format must be of type text, json_object, or json_schema with a schema.", "response_format"
        )
    return Constraint(schema)


def _of_guided(key: str, value: Any, param: str) -> Constraint:
    match key, value:
        case "json", dict():
            return Constraint(value, param=param)
        case "json", str():
            try:
                return Constraint(orjson.loads(value), param=param)
            except orjson.JSONDecodeError:
                raise bad_request("The schema is no JSON.", param) from None
        case "json_object", True:
            return Constraint(JSON_OBJECT, param=param)
        case "choice", [_, *_] if all(isinstance(one, str) for one in value):
            return Constraint(choices=tuple(value), param=param)
        case "regex", str():
            return Constraint(pattern=value, param=param)
    raise bad_request(f"The embedded engine does not serve this {key} of {param}.", param)


# ---- the answers


@dataclass(frozen=True, slots=True)
class _Writer:
    """All that the answers of one request have in common."""

    prompt: bytes
    max_tokens: int
    ignores_end: bool
    stop: Stop
    offered: Offered
    choice: ToolChoice
    constraint: Constraint | None

    def answer(self, script: ScriptedAnswer | None, seed_text: bytes) -> PlannedAnswer:
        script = self._chosen(script, seed_of(self.prompt, seed_text))
        return answer_to(self.prompt, script, self.max_tokens, self.ignores_end, self.stop, seed_text)

    def _chosen(self, script: ScriptedAnswer | None, seed: int) -> ScriptedAnswer | None:
        """Return the answer that `tool_choice` and the constraint leave. None: filler."""
        mode, names = self.choice.mode, self.choice.names
        calls = script.tool_calls if script is not None and mode != _NO_CALLS else ()
        if mode == _REQUIRED:
            calls = tuple(call for call in calls if call[0] in names)
        is_any = mode == _REQUIRED or (script is not None and script.calls_any_tool and mode != _NO_CALLS)
        if not calls and is_any and names:
            calls = ((random.Random(seed).choice(names), None, None),)  # noqa: S311
        if calls:
            written = tuple(
                (name, self._arguments(name, given, seed + index), call_id)
                for index, (name, given, call_id) in enumerate(calls)
            )
            return replace(script or ScriptedAnswer("", None, ()), tool_calls=written)
        if script is not None and (script.content or script.output_tokens is not None):
            return replace(script, tool_calls=())
        if self.constraint is not None:
            return ScriptedAnswer(self.constraint.text(seed), None, ())
        return None if script is None or script.tool_calls or script.calls_any_tool else script

    def _arguments(self, name: str, given: str | None, seed: int) -> str:
        if given is not None:
            return given
        tool = self.offered[name]
        if tool.is_custom:
            return words(random.Random(seed), 4)  # noqa: S311
        return Constraint(tool.parameters or {"type": "object"}, param="tools").text(seed)
