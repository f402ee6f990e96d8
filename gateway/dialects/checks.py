"""The request fields that the gateway itself relies on, checked; everything else is the engine's to judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json

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
