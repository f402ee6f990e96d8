from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from typing_extensions import TypedDict

from tests.tool_runtime.fakes import ANN, Observed
from tool_runtime.define import define, tool
from tool_runtime.types import Context, Effect, Json, Limits, Scope, Status


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Span(TypedDict):
    first: int
    last: int


POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
    "additionalProperties": False,
}
SPAN = {
    "type": "object",
    "properties": {"first": {"type": "integer"}, "last": {"type": "integer"}},
    "required": ["first", "last"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (list[int], {"items": {"type": "integer"}, "type": "array"}),
        (dict[str, float], {"additionalProperties": {"type": "number"}, "type": "object"}),
        (date, {"format": "date", "type": "string"}),
        (Annotated[int, Field(ge=1, description="how many")], {"minimum": 1, "description": "how many"}),
        (Color, {"$ref": "#/$defs/Color"}),
        (Point, {"$ref": "#/$defs/Point"}),
        (Span, {"$ref": "#/$defs/Span"}),
    ],
    ids=str,
)
def test_a_hint_becomes_a_schema(hint: Any, schema: Json) -> None:
    def f(value): ...  # type: ignore[no-untyped-def]

    f.__annotations__["value"] = hint
    parameters = define(f).parameters
    assert schema.items() <= parameters["properties"]["value"].items()
    assert parameters["required"] == ["value"]
    assert parameters["additionalProperties"] is False
    known = {"Color": {"enum": ["red", "blue"], "type": "string"}, "Point": POINT, "Span": SPAN}
    assert parameters.get("$defs", {}).items() <= known.items()


def search(query: str, copy: bool = False, *, color: Color = Color.RED, context: Context) -> str:
    """Search the catalogue.

    Knows what was sold, too.

    Args:
        query: words to look for,
            in any order
        copy (bool): whether a copy will do

    Returns:
        What was found.
    """
    return f"{query} {copy} {color!r} {context.session_id}"


def test_a_function_says_what_its_tool_is() -> None:
    defined = define(search)
    assert defined.name == "search"
    assert defined.description == "Search the catalogue.\n\nKnows what was sold, too."
    assert defined.parameters["properties"] == {
        "query": {"type": "string", "description": "words to look for, in any order"},
        "copy": {"type": "boolean", "default": False, "description": "whether a copy will do"},
        "color": {"$ref": "#/$defs/Color", "default": "red"},
    }
    assert defined.parameters["required"] == ["query"]
    assert defined.effect is Effect.DESTRUCTIVE


def test_the_decorator_takes_what_a_tool_has() -> None:
    @tool(name="look", effect=Effect.READ_ONLY, limits=Limits(ttl_s=5.0), source="mine")
    async def anything() -> None: ...

    assert (anything.name, anything.effect, anything.limits.ttl_s, anything.source) == (
        "look",
        Effect.READ_ONLY,
        5.0,
        "mine",
    )


async def test_arguments_arrive_as_python_values_and_the_context_as_itself() -> None:
    result = await Observed(define(search, name="slow")).begin('{"query": "a", "color": "blue"}')
    assert result.text == "a False <Color.BLUE: 'blue'> ann"


async def test_what_the_schema_cannot_tell_is_refused_all_the_same() -> None:
    def on(day: date) -> str:
        return day.isoformat()

    observed = Observed(define(on, name="slow"))
    assert (await observed.begin('{"day": "2026-01-31"}')).text == "2026-01-31"
    result = await observed.begin('{"day": "2026-02-31"}')
    assert (result.status, "day: Input should be a valid date" in result.text) == (Status.REFUSED, True)


async def test_only_a_blocking_function_runs_in_a_thread() -> None:
    async def here() -> bool:
        return threading.current_thread() is threading.main_thread()

    def there() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert [await define(f).run({}, ANN) for f in (here, there)] == [True, False]  # type: ignore[misc]


def test_what_asks_for_its_context_is_shared_within_a_session_unless_it_says_otherwise() -> None:
    assert define(search).limits.scope is Scope.SESSION
    assert define(search, limits=Limits()).limits.scope is Scope.TENANT


async def test_methods_and_partial_functions_can_be_tools() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = 0

        async def add(self, n: int) -> int:
            self.total += n
            return self.total

        async def __call__(self, n: int) -> int:
            return await self.add(n)

    counter = Counter()
    for function in (counter.add, counter, partial(counter.add)):
        await Observed(define(function, name="slow")).begin('{"n": 2}')
    assert counter.total == 6


def test_a_function_that_a_model_cannot_call_is_no_tool() -> None:
    def rest(*values: int) -> None: ...

    def by_place(value: int, /) -> None: ...

    def opaque(value: threading.Thread) -> None: ...

    for function in (rest, by_place, opaque):
        with pytest.raises(TypeError, match="cannot be a tool"):
            define(function)


async def test_a_default_that_is_not_json_stays_the_functions_own() -> None:
    nothing = object()

    def f(value: Any = nothing) -> bool:
        return value is nothing

    defined = define(f, name="slow")
    assert defined.parameters["properties"] == {"value": {}}
    assert (await Observed(defined).begin()).text == "true"
