"""The contract of a wire format, with the behaviour that most formats have in common. Pure readers and writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply
from gateway.core.slices import Steps
from gateway.dialects import canonical
from gateway.dialects.canonical import ToolList
from gateway.dialects.description import CallDescription
from policies.recognition.chains import Chain
from policies.types import value

if TYPE_CHECKING:
    from gateway.dialects.rounds import ToolFormat


@value
class Script:
    """A conversation in canonical form, for lineage: what stays equal when a client re-serialises its history.

    Volatile ids, nulls and vendor annotations are gone, tool arguments are parsed, text parts are folded
    together. Order of meaning: tools, system, messages.
    """

    tools: tuple[bytes, ...] = ()
    """One canonical text per tool, in the client's order."""
    system: bytes = b""
    messages: Sequence[bytes] = ()
    """One canonical text per message after the system text, role first."""
    offers_tools: bool = False
    tool_names: tuple[str, ...] = ()
    num_system: int = 0
    """Items of the conversation before the first message, where `messages` are `Texts`."""
    blocks: Chain | None = None
    """The residency chain, where it was made beforehand."""


MOST_ANSWERS = 16_384
"""vLLM's bound on `n`. What is larger is refused by engines."""


class Opening(Protocol):
    """The part of an answer that a client was sent while it waited, before any engine answered. All that follows
    belongs to the same answer: one id, one model, one row of numbers."""

    def keep_alive(self) -> bytes:
        """Return a whole SSE *data* event that means nothing and resets every client's idle timer."""
        ...

    def joined(self, event: bytes, parsed: Json) -> bytes:
        """Return an engine's event as one of this answer; empty where the opening has said the same."""
        ...

    def error_event(self, failure: Failure) -> bytes:
        """Return a whole SSE event that fails the answer; no end marker follows it."""
        ...


class Dialect:
    """One wire format. Readers change nothing; writers return bytes that are ready to send.

    As it stands, it is the format of the paths without a conversation, such as `/tokenize`.
    """

    name = "plain"
    """Label of metrics and receipts. The code asks for the properties below, never for the name."""
    is_conversation = False
    """Whether its requests are turns of a session."""
    operation = "chat"
    """OpenTelemetry's name of what its calls do."""
    description: CallDescription

    # ---- a request

    tries_websocket = False
    """Whether its clients ask for a websocket first, and POST where there is none."""
    history_key = ""
    """Key of the conversation in a body. Empty: there is none, or only the client knows its parts."""
    is_item_a_message = False
    """Whether each item of the conversation is a message by itself."""
    system_keys: tuple[str, ...] = ()
    """Keys of system texts beside the conversation, which may begin with further ones."""
    bound_keys: tuple[str, ...] = ("max_tokens",)
    """Keys that bound the output. Where a body has two, one engine reads the first and another the second."""
    may_omit_bound = False
    """Whether an answer without a bound may be as long as fits."""
    always_sends_usage = False
    """Whether every stream ends with its usage; else a request has to ask for it."""

    def check(self, body: Json) -> Failure | None:
        """Return the first fault in the fields that the gateway itself relies on."""
        return wrong_field(body, COMMON)

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        """Return the conversation of a request. `tools`: its tools, where they are known."""
        return Script()

    def script_in_steps(self, body: Json, tools: ToolList) -> Steps[Script]:
        """As `script`, of a large request. A step reads one item, where the items are read at all."""
        yield
        return self.script(body, tools)

    def definitions(self, body: Json) -> list[Json]:
        """Return the tools of a request."""
        return canonical.objects(body.get("tools"))

    def history(self, body: Json) -> list[Json]:
        """Return the items of the conversation."""
        return fields.items(body, self.history_key)

    def prompts(self, body: Json) -> list[Prompt] | None:
        """Return the prompts of a request that has several, each answered by itself; None for one prompt."""
        return None

    def num_answers(self, body: Json) -> int:
        """Return how many answers an engine computes for each prompt."""
        if "n" not in body and "best_of" not in body:
            return 1
        wanted = max(fields.count(body, "n") or 1, fields.count(body, "best_of") or 1)
        return min(MOST_ANSWERS, max(1, wanted))

    def num_prompts(self, body: Json) -> int:
        """Return how many prompts an engine may find in a request."""
        return 1

    def wants_usage(self, body: Json) -> bool:
        """Return whether the client itself gets usage in its stream."""
        return self.always_sends_usage or fields.flag(fields.obj(body, "stream_options"), "include_usage")

    def asking_for_usage(self, body: Json) -> Mapping[str, Any]:
        """Return top-level keys that make the engine report usage in a stream; empty when nothing is needed."""
        if not fields.flag(body, "stream") or self.wants_usage(body):
            return {}
        options = fields.obj(body, "stream_options") | {"include_usage": True}
        # Without `include_usage` it says nothing; with it, every event would carry usage.
        options.pop("continuous_usage_stats", None)
        return {"stream_options": options}

    def max_tokens_keys(self, body: Json) -> list[str]:
        """Return the names of the keys that bound the output in this body."""
        return [key for key in self.bound_keys if body.get(key) is not None]

    def max_tokens(self, body: Json) -> int | None:
        """Return the largest bound on the output that an engine may read. None: there is none, or it may read
        none: a bound below 1 means no bound to some."""
        bounds = [fields.count(body, key) or 0 for key in self.max_tokens_keys(body)]
        return max(bounds) if bounds and min(bounds) >= 1 else None

    def answers_later(self, body: Json) -> bool:
        """Return whether the engine goes on after its reply, so that the usage is not in it."""
        return False

    def stateful_id(self, body: Json) -> str | None:
        """Return the id of an earlier answer that lives on one replica (`previous_response_id`)."""
        return None

    # ---- an answer

    preambles: frozenset[str] = frozenset()
    """Types of events that engines send on arrival, before the prefill. An answer begins after them."""
    stores_answers = False
    """Whether engines may keep its answers, to be found again by their id."""

    def read(self, event: Json, reply: Reply) -> None:
        """Fold one stream event, or a whole answer, into the reply: text, tool calls, finish, model.

        Of several choices the first is read. Reasoning is not part of the text.
        """
        reply.model = fields.text(event, "model") or reply.model
        reply.is_complete = True

    def is_asked_usage(self, event: Json) -> bool:
        """Return whether a stream event is exactly the extra one that `asking_for_usage` brings."""
        has_only_usage = event.get("choices") == [] and isinstance(event.get("usage"), dict)
        return has_only_usage and not self.always_sends_usage

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Opening:
        """Return the beginning of a streamed answer to `body`, of which nothing has been sent."""
        raise NotImplementedError("this path does not stream")

    def tool_format(self) -> ToolFormat | None:
        """Return how the format speaks of tools; None where the gateway runs none."""
        return None

    # ---- a failure

    knows_overload = False
    """Whether its clients know that status 529 may be asked again."""

    def is_error(self, event: Json) -> Failure | None:
        """Return the failure that a stream event, or a whole body, reports; None for an ordinary one."""
        error = event.get("error")
        if error:
            return read_error(error)
        return read_error(event) if event.get("object") == "error" else None

    def is_error_body(self, body: Json) -> bool:
        """Return whether an engine's error is in the envelope that clients of this format read."""
        return fields.text(fields.obj(body, "error"), "message") is not None and body.get("type") != "error"

    def error_body(self, failure: Failure) -> bytes:
        """Return the JSON body of a failed answer."""
        return orjson.dumps({"error": openai_error(failure)})

    def error_event(self, failure: Failure) -> bytes:
        """Return a whole SSE event that fails an open stream; no end marker follows it."""
        return sse.event(self.error_body(failure))


class Embeddings(Dialect):
    """`/v1/embeddings`, which has no conversation."""

    name = "embeddings"
    description = CallDescription("Embeddings", example={"input": "Hello"}, streams=False)


class Tokenize(Dialect):
    """`/tokenize`."""

    description = CallDescription("Tokens of a text", example={"prompt": "Hello"}, streams=False)


class Detokenize(Dialect):
    """`/detokenize`."""

    description = CallDescription("Text of tokens", example={"tokens": [1]}, streams=False)


Prompt: TypeAlias = str | list[int]
"""Text, or tokens."""


# ---- the opening of OpenAI's streams of chunks


@dataclass(frozen=True, slots=True)
class Chunks:
    """An `Opening` of a stream of chunks, each of which names its answer."""

    name: Json
    """`id`, `created` and `model`, which every chunk repeats."""
    empty: bytes
    """A whole event that holds nothing but the name."""

    def keep_alive(self) -> bytes:
        return self.empty

    def joined(self, event: bytes, parsed: Json) -> bytes:
        changed = {key: value for key, value in self.name.items() if parsed.get(key, value) != value}
        return sse.event(fields.written(parsed | changed)) if changed else event

    def error_event(self, failure: Failure) -> bytes:
        return Dialect().error_event(failure)


def chunks(answer_id: str, model: str, created_at: int, kind: str, choice: Json) -> Chunks:
    """Return the opening of one answer. `choice`: an empty one."""
    name = {"id": answer_id, "created": created_at, "model": model}
    return Chunks(name, sse.event(orjson.dumps({**name, "object": kind, "choices": [choice]})))


# ---- the request fields that the gateway itself relies on, checked

Shape: TypeAlias = tuple[tuple[type, ...], str]
"""Types that are allowed, and how to name them to a person."""

TEXT: Shape = ((str,), "a string")
FLAG: Shape = ((bool,), "true or false")
LIST: Shape = ((list,), "a list")
OBJECT: Shape = ((dict,), "an object")
TEXT_OR_LIST: Shape = ((str, list), "a string or a list")

COMMON: dict[str, Shape] = {"model": TEXT, "stream": FLAG, "stream_options": OBJECT}
_NAMES = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def wrong_field(
    body: Json, shapes: Mapping[str, Shape], *, required: str | None = None, objects_in: tuple[str, ...] = ()
) -> Failure | None:
    """Return the first field of a wrong type, or the `required` one when it is absent. null is absent."""
    if required is not None and body.get(required) is None:
        return refusal(required, f"`{required}` is missing: a request needs one.")
    for key in body.keys() & shapes.keys():
        value = body[key]
        if value is not None and not isinstance(value, shapes[key][0]):
            return _first_wrong(body, shapes)
    for key in objects_in:
        value = body.get(key)
        if value and isinstance(value, list) and not fields.has_only_objects(value):
            index, item = next((at, one) for at, one in enumerate(value) if not isinstance(one, dict))
            return refusal(f"{key}[{index}]", f"`{key}[{index}]` must be an object, not {_named(item)}.")
    return None


def _first_wrong(body: Json, shapes: Mapping[str, Shape]) -> Failure | None:
    for key, (types, description) in shapes.items():
        value = body.get(key)
        if value is not None and not isinstance(value, types):
            return refusal(key, f"`{key}` must be {description}, not {_named(value)}.")
    return None


def refusal(param: str, message: str) -> Failure:
    return Failure(400, "invalid_request_error", message, param=param)


def _named(value: object) -> str:
    """Return the name of a value's JSON type for a person."""
    return _NAMES.get(type(value), "null")


# ---- failures in the words of OpenAI's formats, which engines use too

_KIND_OF_STATUS = {
    401: "authentication_error",
    403: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_STATUS_OF_NAME = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "BadRequestError": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "NotFoundError": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 503,
    "Overloaded": 503,
    "ServiceUnavailableError": 503,
}
"""Types and codes of OpenAI, Anthropic, vLLM and Dynamo that come without a status."""


def kind_of(status: int) -> str:
    """Return OpenAI's `type` for a status."""
    if status >= 500:
        return "server_error"
    return _KIND_OF_STATUS.get(status, "invalid_request_error")


def read_error(error: Any) -> Failure:
    """Return what an engine put under `error`, or an error object without a wrapper. It is a 500 if it names no
    status."""
    if not isinstance(error, dict):
        return Failure(500, "server_error", str(error))
    status, code = _status(error), error.get("code")
    return Failure(
        status,
        kind_of(status),
        fields.text(error, "message") or "the engine failed without a reason",
        param=fields.text(error, "param"),
        code=code if isinstance(code, str) else None,
    )


def _status(error: Json) -> int:
    """Return the status: vLLM and SGLang put it into `code`."""
    code = fields.integer(error, "code")
    if code is not None and 400 <= code < 600:
        return code
    names = (error.get("code"), error.get("type"))
    return next(
        (_STATUS_OF_NAME[name] for name in names if isinstance(name, str) and name in _STATUS_OF_NAME), 500
    )


def openai_error(failure: Failure) -> Json:
    """Return the object under `error` of OpenAI's formats."""
    return {"message": failure.message, "type": failure.kind, "param": failure.param, "code": failure.code}
