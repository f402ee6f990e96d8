"""What a wire format says of its calls in the OpenAPI description, and the words of JSON Schema for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.fields import Json

TEXT: Json = {"type": "string"}
OBJECT: Json = {"type": "object"}
OBJECTS: Json = {"type": "array", "items": OBJECT}


def nullable(schema: Json) -> Json:
    """Return a schema that null fits too, which clients send for an absent field."""
    return {"anyOf": [schema, {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class CallDescription:
    """A model call by the fields of its body that the gateway reads. All others belong to the engine."""

    summary: str
    fields: Mapping[str, Json] = field(default_factory=dict)
    """Schemas of the fields beside `model`, `stream` and `stream_options`."""
    required: Sequence[str] = ()
    example: Json = field(default_factory=dict)
    """Fields of a usual body, beside its model."""
    failure: str = "Failure"
    """Schema of its refusals."""
    streams: bool = True
