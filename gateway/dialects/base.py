"""What the path needs to know of a wire format: pure readers and writers, one file per format.

A dialect never changes what it reads. Writers return bytes that are ready to send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import getsizeof
from typing import Any, Protocol, TypeAlias

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply
from policies.types import value


@value
class Script:
    """A conversation in canonical form, for lineage: what stays equal when a client re-serialises its history.

    Volatile ids, nulls and vendor annotations are gone, tool arguments are parsed, text parts are folded
    together. Order of meaning: tools, system, messages.
    """

    tools: tuple[bytes, ...]
    """One canonical text per tool, in the client's order."""
    system: bytes
    messages: Sequence[bytes]
    """One canonical text per message after the system text, role first."""
    offers_tools: bool
    tool_names: tuple[str, ...]
    num_system: int = 0
    """Where `messages` are `Texts`: items of the conversation before the first of them."""


@value
class ToolList:
    """The tools of a request, in canonical form."""

    texts: tuple[bytes, ...]
    names: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(getsizeof, self.texts)) + sum(map(getsizeof, self.names))


class Opening(Protocol):
    """What a client was sent of its answer while it waited, before any engine answered. All that follows belongs
    to the same answer: one id, one model, one row of numbers."""

    def keep_alive(self) -> bytes:
        """A whole SSE *data* event that means nothing and resets every client's idle timer."""
        ...

    def joined(self, event: bytes, parsed: Json) -> bytes:
        """An event of an engine as one of this answer; empty when the client has been told as much."""
        ...

    def error_event(self, failure: Failure) -> bytes:
        """A whole SSE event that fails the answer; no end marker follows it."""
        ...


class Dialect(Protocol):
    """One wire format."""

    name: str
    """`chat`, `completions`, `responses`, `messages`, `embeddings` or `plain`."""
    is_conversation: bool
    """Whether its requests are turns of a session (chat, completions, responses, messages)."""

    def check(self, body: Json) -> Failure | None:
        """Only what the gateway itself relies on: types of `model`, `stream` and the conversation field."""
        ...

    conversation_key: str
    """Of the list in which each item is a message by itself; empty: there is none."""

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        """The conversation of a request. `tools`: its tools, where they are known."""
        ...

    def wants_usage(self, body: Json) -> bool:
        """Whether the client asked for usage in its stream; True where the format always sends it."""
        ...

    def asking_for_usage(self, body: Json) -> Mapping[str, Any]:
        """Top-level keys that make the engine report usage in a stream; empty when nothing is needed."""
        ...

    def max_tokens_key(self, body: Json) -> str | None:
        """Name of the key that bounds the output in this body; None when it has none."""
        ...

    def stateful_id(self, body: Json) -> str | None:
        """Id of an earlier answer that lives on one replica (`previous_response_id`)."""
        ...

    def read(self, event: Json, reply: Reply) -> None:
        """Fold one stream event, or a whole answer, into the reply: text, tool calls, finish, model.

        Of several choices the first is read. Reasoning is not part of the text.
        """
        ...

    def is_asked_usage(self, event: Json) -> bool:
        """Whether a stream event is exactly the extra one that `asking_for_usage` brings."""
        ...

    def is_error(self, event: Json) -> Failure | None:
        """The failure that a stream event, or a whole body, reports; None for an ordinary one."""
        ...

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Opening:
        """The beginning of a streamed answer to `body`, of which nothing has been sent."""
        ...

    def error_body(self, failure: Failure) -> bytes:
        """JSON body of a failed answer."""
        ...

    def error_event(self, failure: Failure) -> bytes:
        """A whole SSE event that fails an open stream; no end marker follows it."""
        ...


# ---- the request fields that the gateway itself relies on, checked

Shape: TypeAlias = tuple[tuple[type, ...], str]
"""Types that are allowed, and how to name them to a person."""

TEXT: Shape = ((str,), "a string")
FLAG: Shape = ((bool,), "true or false")
LIST: Shape = ((list,), "a list")
OBJECT: Shape = ((dict,), "an object")
TEXT_OR_LIST: Shape = ((str, list), "a string or a list")

COMMON: dict[str, Shape] = {"model": TEXT, "stream": FLAG, "stream_options": OBJECT}


def wrong_field(
    body: Json, shapes: Mapping[str, Shape], *, required: str | None = None, objects_in: tuple[str, ...] = ()
) -> Failure | None:
    """The first field of a wrong type, or the `required` one when it is absent. null is absent."""
    if required is not None and body.get(required) is None:
        return refusal(required, f"`{required}` is missing: a request needs one.")
    for key, (types, description) in shapes.items():
        value = body.get(key)
        if value is not None and not isinstance(value, types):
            return refusal(key, f"`{key}` must be {description}, not {_named(value)}.")
    for key in objects_in:
        value = body.get(key)
        if isinstance(value, list) and not fields.has_only_objects(value):
            index, item = next((at, one) for at, one in enumerate(value) if not isinstance(one, dict))
            return refusal(f"{key}[{index}]", f"`{key}[{index}]` must be an object, not {_named(item)}.")
    return None


def refusal(param: str, message: str) -> Failure:
    return Failure(400, "invalid_request_error", message, param=param)


def _named(value: object) -> str:
    """A JSON type as a person calls it."""
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")
