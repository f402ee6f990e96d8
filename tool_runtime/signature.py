"""The parameters of a Python function as JSON Schema, and JSON arguments back as Python values.

pydantic does both: it knows Literal, Enum, Optional, containers, dataclasses, TypedDict and Annotated constraints,
and makes of `"2026-01-31"` the date that the function asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from tool_runtime.arguments import InvalidArguments
from tool_runtime.types import Context, Json

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature:
    """What a function takes. Parameters annotated `Context` are not the model's: they get the call's context."""

    def __init__(self, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        """Raises TypeError if there is no JSON Schema for it."""
        try:
            parameters = inspect.signature(function, eval_str=True).parameters.values()
            self._contexts = [p.name for p in parameters if p.annotation is Context]
            self._names = [p.name for p in parameters if p.annotation is not Context]
            fields = [_field(p, descriptions.get(p.name)) for p in parameters if p.annotation is not Context]
            # Numbered fields: a parameter may have the name of a model's method.
            numbered: Any = {f"p{i}": field for i, field in enumerate(fields)}
            self._model: type[BaseModel] = create_model("Arguments", __config__=_CONFIG, **numbered)
            self.schema: Json = _untitled(self._model.model_json_schema(schema_generator=_Generate))
        except (PydanticUserError, NameError, TypeError) as error:
            reason = error.message if isinstance(error, PydanticUserError) else str(error)
            first_line = reason.partition("\n")[0]
            raise TypeError(f"{function!r} cannot be a tool: {first_line}") from None

    @property
    def takes_context(self) -> bool:
        return bool(self._contexts)

    def bind(self, arguments: Json, context: Context) -> dict[str, Any]:
        """Keyword arguments for the function. Raises InvalidArguments for what the schema could not tell."""
        try:
            model = self._model.model_validate(arguments)
        except ValidationError as error:
            faults = [f"- {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
            raise InvalidArguments("\n".join(["Invalid arguments:", *faults])) from None
        values = {name: getattr(model, f"p{i}") for i, name in enumerate(self._names)}
        return values | dict.fromkeys(self._contexts, context)


_CONFIG = ConfigDict(extra="forbid")


class _Generate(GenerateJsonSchema):
    """Leaves out defaults that are not JSON, without a warning: the function knows them."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def _field(parameter: inspect.Parameter, description: str | None) -> tuple[Any, Any]:
    if parameter.kind not in BY_NAME:
        raise TypeError(f"parameter {parameter} cannot be given by name")
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    default = ... if parameter.default is parameter.empty else parameter.default
    told: Any = {} if description is None else {"description": description}
    return annotation, Field(default, alias=parameter.name, **told)


def _untitled(schema: Any) -> Any:
    """Without titles: each repeats a name, in every prompt."""
    if isinstance(schema, list):
        return [_untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: part if key in ("default", "const", "enum", "examples") else _untitled(part)
        for key, part in schema.items()
        if not (key == "title" and isinstance(part, str))
    }
