"""Makes a Tool of a Python function: name, schema and descriptions from what the function says of itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tool_runtime import docstring
from tool_runtime.calling import in_thread
from tool_runtime.signature import Signature
from tool_runtime.types import Context, Effect, Json, Limits, Scope, Tool

MAX_THREADS = 32
"""Executions at once of a blocking function that states no concurrency: one that hangs keeps its thread."""


def define(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = Effect.DESTRUCTIVE,
    limits: Limits | None = None,
    **options: Any,
) -> Tool:
    """The tool that calls `function`, in a thread unless it is async. `options` are the other fields of Tool.

    The schema comes from the type hints, the defaults and the docstring. A parameter annotated `Context` gets the
    call's context; without `limits`, such a function's results are shared within one session only.
    Raises TypeError if the parameters have no JSON Schema, ValueError as Tool does.
    """
    text = inspect.getdoc(function) or ""
    signature = Signature(function, docstring.parameters_of(text))
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
        description=docstring.summary_of(text) if description is None else description,
        parameters=signature.schema,
        run=run,
        effect=effect,
        limits=limits,
        **options,
    )


def tool(**options: Any) -> Callable[[Callable[..., Any]], Tool]:
    """`@tool(effect=..., limits=...)`: as `define`."""
    return lambda function: define(function, **options)
