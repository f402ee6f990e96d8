"""Arguments as a model writes them: parsed, checked against the tool's JSON Schema, in one canonical text.

`jsonschema` checks the tools of every source alike, since MCP servers send schemas and not Python types. Its
messages name the place and the rule, so that a model can repair its call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from tool_runtime.types import Json, Refused

MAX_CHARS = 1_000_000
"""Longer arguments are refused unread."""
LONG_CHARS = 8_000
"""Longer arguments are checked in a thread, since the check would hold up other requests."""
KEPT, KEPT_CHARS = 512, 2_048
"""Number and length of valid arguments that a schema remembers. The agents of a fleet send equal ones, and the
check is the largest cost of a call here."""
MAX_PROBLEMS = 5
MAX_PROBLEM_CHARS = 300
"""A message quotes the faulty value, which may be the whole call."""


class InvalidArguments(Refused):
    """The tool does not take these arguments. The text says what to change."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments that the tool takes."""

    canonical: str
    """Equal for equal arguments: sorted keys, no white space."""

    @property
    def value(self) -> Json:
        """A new value each time, which the tool may change."""
        value: Json = json.loads(self.canonical)
        return value


class Schema:
    """The JSON Schema of one tool's arguments."""

    def __init__(self, parameters: Json) -> None:
        """Raises ValueError if `parameters` does not describe an object as JSON Schema."""
        try:
            validator = validator_for(parameters, default=Draft202012Validator)
            validator.check_schema(parameters)
        except (SchemaError, RecursionError, TypeError) as error:
            reason = error.message if isinstance(error, SchemaError) else str(error)
            raise ValueError(f"not a JSON Schema: {_short(reason)}") from None
        if parameters.get("type", "object") != "object":
            raise ValueError(f"a schema of arguments describes an object, not {parameters['type']!r}")
        # An empty registry: a schema may refer to its own parts, and never to an address.
        self._validator: Validator = extend(validator, _LINEAR)(  # type: ignore[no-untyped-call]
            parameters, registry=Registry()
        )
        self._remembered = lru_cache(KEPT)(self._read)

    def read(self, text: str) -> Arguments:
        """Return the arguments in a call's raw text. Raises InvalidArguments."""
        return self._remembered(text) if len(text) <= KEPT_CHARS else self._read(text)

    def _read(self, text: str) -> Arguments:
        try:
            value = _parsed(text)
            problems = self._problems(value)
            if problems:
                value = self._mended(value)
                if self._problems(value):
                    raise InvalidArguments("\n".join(["Invalid arguments:", *(f"- {p}" for p in problems)]))
            return Arguments(canonical(value))
        except RecursionError:
            raise InvalidArguments("Invalid arguments: they are nested too deeply.") from None
        except Unresolvable as error:
            raise InvalidArguments(f"The schema of this tool refers to {error.ref!r}, which it lacks.") from None
        except ValueError as error:  # not finite, or a lone surrogate: no other parser would take it
            raise InvalidArguments(f"Invalid arguments: {error}") from None

    def _problems(self, value: Json) -> list[str]:
        return [_described(error) for error in islice(self._errors(value), MAX_PROBLEMS)]

    def _mended(self, value: Json) -> Json:
        """Read texts as JSON where the schema wants no text: models write `"5"` for 5 and `"[1]"` for [1]."""
        mended = dict(value)
        for error in self._errors(value):
            if len(error.path) == 1 and error.validator in ("type", "anyOf") and isinstance(error.instance, str):
                with suppress(ValueError):
                    mended[str(error.path[0])] = _loads(error.instance)
        return mended

    def _errors(self, value: Json) -> Iterator[ValidationError]:
        return iter(self._validator.iter_errors(value))


def canonical(value: Any) -> str:
    """Return one text for equal JSON values. Raises ValueError for a value that JSON or UTF-8 cannot hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


def canonical_text(text: str) -> str:
    """Return the canonical form of JSON text, and any other text as it is."""
    try:
        return canonical(_loads(text))
    except (ValueError, RecursionError):
        return text


def _all_unique(_validator: Any, unique: Any, items: Any, _schema: Any) -> Iterator[ValidationError]:
    """Check `uniqueItems` in linear time. The library's own check compares each object with every other one."""
    if unique and isinstance(items, list) and len(set(map(_hashable, items))) < len(items):
        yield ValidationError(f"{items!r} has non-unique elements")


_LINEAR = {"uniqueItems": _all_unique}


def _hashable(value: Any) -> Any:
    """Return a value that is equal for equal JSON values: 1 equals 1.0, and 1 does not equal true."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return isinstance(value, bool), value


def _parsed(text: str) -> Json:
    if len(text) > MAX_CHARS:
        raise InvalidArguments(f"Invalid arguments: {len(text)} characters, and at most {MAX_CHARS} are read.")
    try:
        value = _loads(text) if text.strip() else None
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise InvalidArguments(
            f"Invalid arguments: not JSON: {error.msg} at character {error.pos}, near {near!r}"
        ) from None
    if value is None:
        return {}  # several models call a tool without parameters so
    if not isinstance(value, dict):
        raise InvalidArguments(f"Invalid arguments: a JSON object is needed, not {_short(text)}")
    return value


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _described(error: ValidationError) -> str:
    deepest = best_match([error]) or error  # within an `anyOf`, the branch that was nearly met
    return f"{deepest.json_path}: {_short(deepest.message)}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM_CHARS else f"{text[:MAX_PROBLEM_CHARS]}..."
