"""Reads the options of a tool or server from a mapping, such as a part of a YAML file, into a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """`values` as a `kind`, a dataclass whose fields are text, numbers, flags, and tuples and mappings of text.

    Raises ValueError with every fault: unknown and missing keys, and values of another type.
    """
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    faults = [f"{where}: no such key {key!r}{_meant(key, known)}" for key in values if key not in known]
    faults += [
        f"{where}: {name} is missing"
        for name, field in known.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    read_values = {}
    for name, value in values.items():
        if name in known:
            try:
                read_values[name] = _value(hints[name], value)
            except TypeError as error:
                faults.append(f"{where}: {name} has to be {error}, not {value!r}")
    if faults:
        raise ValueError("\n".join(faults))
    try:
        return kind(**read_values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _meant(key: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(key, known, 1)
    return f" (did you mean {close[0]}?)" if close else f" (known: {', '.join(known)})"


def _value(hint: Any, value: Any) -> Any:
    """Raises TypeError with what the value has to be."""
    origin = get_origin(hint)
    if origin is UnionType:
        inner = next(arm for arm in get_args(hint) if arm is not type(None))
        return None if value is None else _value(inner, value)
    if origin is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise TypeError("a list of text")
        return tuple(value)
    if origin is not None:
        if not isinstance(value, Mapping) or not all(isinstance(x, str) for item in value.items() for x in item):
            raise TypeError("a mapping of text to text")
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise TypeError({str: "text", int: "a whole number", float: "a number", bool: "true or false"}[hint])
    return value
