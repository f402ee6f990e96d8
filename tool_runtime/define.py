"""Makes a Tool of a Python function: its schema from the type hints, its descriptions from the docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from tool_runtime.arguments import InvalidArguments
from tool_runtime.execution import in_thread
from tool_runtime.types import Context, Effect, Json, Limits, Scope, Tool

# ---- docstrings in Google, NumPy or Sphinx style

_MORE = r"(?:\n+[ \t]+.*)*"
"""Further lines of an entry are indented."""
_PATTERNS = (
    (
        r"^(?:args|arguments|parameters):[ ]*\n((?:[ \t]+.*\n|\n)+)",
        r"^(\w+)[ ]*(?:\(.*?\))?:[ ]*(.*" + _MORE + ")",
    ),
    (r"^parameters\n-{3,}\n((?:.*\n)*?)(?=\S.*\n-{3,}\n|\Z)", r"^(\w+)[ ]*(?::.*)?(" + _MORE + ")"),
    (r"((?:.*\n)*)", r"^:param (?:[^:\n]*\s)?(\w+):[ ]*(.*" + _MORE + ")"),
)
STYLES = [(re.compile(section, re.M | re.I), re.compile(entry, re.M)) for section, entry in _PATTERNS]
"""Patterns of a section, and of one parameter in it once its indentation is removed."""
FIRST_SECTION = re.compile(
    r"^(?:(?:args|arguments|parameters|returns|yields|raises|examples?|notes?):[ ]*$|\S.*\n-{3,}$|:\w+.*:)",
    re.M | re.I,
)


def summary_of(text: str) -> str:
    """Return the docstring up to its first section."""
    return FIRST_SECTION.split(inspect.cleandoc(text), maxsplit=1)[0].strip()


def parameters_of(text: str) -> dict[str, str]:
    """Return the description of each parameter that has one."""
    text = inspect.cleandoc(text) + "\n"
    return {
        name: " ".join(description.split())
        for section, entry in STYLES
        if (found := section.search(text)) is not None
        for name, description in entry.findall(inspect.cleandoc("\n" + found[1]))
        if description.strip()
    }


# ---- parameters as JSON Schema, and JSON arguments as Python values

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature:
    """The parameters of a function. A parameter annotated `Context` gets the context of the call."""

    def __init__(self, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        """Raises TypeError if a parameter has no JSON Schema."""
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
        """Return keyword arguments for the function. Raises InvalidArguments where the schema saw no fault."""
        try:
            model = self._model.model_validate(arguments)
        except ValidationError as error:
            faults = [f"- {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
            raise InvalidArguments("\n".join(["Invalid arguments:", *faults])) from None
        values = {name: getattr(model, f"p{i}") for i, name in enumerate(self._names)}
        return values | dict.fromkeys(self._contexts, context)


_CONFIG = ConfigDict(extra="forbid")


class _Generate(GenerateJsonSchema):
    """Omits defaults that are not JSON, without a warning: the function knows them."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def _field(parameter: inspect.Parameter, description: str | None) -> tuple[Any, Any]:
    if parameter.kind not in BY_NAME:
        raise TypeError(f"parameter {parameter} cannot be given by name")
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    default = ... if parameter.default is parameter.empty else parameter.default
    described: Any = {} if description is None else {"description": description}
    return annotation, Field(default, alias=parameter.name, **described)


def _untitled(schema: Any) -> Any:
    """Return the schema without titles, which repeat names in every prompt."""
    if isinstance(schema, list):
        return [_untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: part if key in ("default", "const", "enum", "examples") else _untitled(part)
        for key, part in schema.items()
        if not (key == "title" and isinstance(part, str))
    }


# ---- the tool

MAX_THREADS = 32
"""Executions at once of a blocking function that states no concurrency. A hanging one keeps its thread."""


def define(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = Effect.DESTRUCTIVE,
    limits: Limits | None = None,
    **options: Any,
) -> Tool:
    """Return the tool that calls `function`, in a thread unless it is async. `options` are fields of Tool.

    The schema comes from the type hints, the defaults and the docstring. A parameter annotated `Context` gets the
    call's context. Without `limits`, the results of such a function are shared within one session only.
    Raises TypeError if the parameters have no JSON Schema, ValueError as Tool does.
    """
    text = inspect.getdoc(function) or ""
    signature = Signature(function, parameters_of(text))
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if limits is None:
        limits = Limits(scope=Scope.SESSION if signature.takes_context else Scope.TENANT)
    if not is_async and limits.concurrency is None:
        limits = replace(limits, concurrency=MAX_THREADS)

    async def run(arguments: Json, context: Context) -> object:
        call = partial(function, **signature.bind(arguments, context))
        return await (call() if is_async else in_thread(call))

    return Tool(
        name=name or str(getattr(function, "__name__", type(function).__name__)),
        description=summary_of(text) if description is None else description,
        parameters=signature.schema,
        run=run,
        effect=effect,
        limits=limits,
        **options,
    )


def tool(**options: Any) -> Callable[[Callable[..., Any]], Tool]:
    """Decorate a function as `define` does: `@tool(effect=..., limits=...)`."""
    return lambda function: define(function, **options)
