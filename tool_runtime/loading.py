"""Tools as a configuration names them: found by name, with options that are read into a dataclass.

Loading runs the code of a tool, which is trusted.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isfunction
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tool_runtime import tools
from tool_runtime.define import define
from tool_runtime.types import Tool

GROUP = "turngate.tools"
"""Group of the entry points with which an installed package offers tools."""

T = TypeVar("T")


def builtin_names() -> list[str]:
    """Return the names of the modules of `tool_runtime/tools` that are tools."""
    names = (module.name for module in pkgutil.iter_modules(tools.__path__))
    return sorted(name for name in names if not name.startswith("_"))


def load(name: str, settings: Mapping[str, Any] | None = None) -> list[Tool]:
    """Return the tools of `module:attribute`, of a built-in, or of an entry point.

    Each of these is a Tool, several Tools, a function that becomes a Tool, or a function named `build` that takes
    the settings and returns one of these. Raises ValueError with a text for the author of the configuration.
    """
    settings = settings or {}
    found = _found(name)
    if isfunction(found) and found.__name__ == "build":
        found = found(settings)
    elif settings:
        raise ValueError(f"{name} takes no settings: only what is named `build` does")
    if isfunction(found):
        return [define(found)]
    if isinstance(found, Tool):
        return [found]
    many = list(found) if isinstance(found, Iterable) else [found]
    if not all(isinstance(tool, Tool) for tool in many):
        raise ValueError(f"{name} is neither a tool nor a list of tools, but {type(found).__name__}")
    return many


def _found(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if colon:
        return _attribute(name, module, attribute)
    if name in builtin_names():
        return _attribute(name, f"{tools.__name__}.{name}", "build")
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if name in offered:
        return _imported(name, offered[name].load)
    known = ", ".join([*builtin_names(), *offered])
    raise ValueError(f"there is no tool {name!r}; known are {known}, and `module:attribute`")


def _attribute(name: str, module: str, attribute: str) -> Any:
    found = _imported(name, lambda: import_module(module))
    if not hasattr(found, attribute):
        raise ValueError(f"{name}: {module} has no {attribute!r}")
    return getattr(found, attribute)


def _imported(name: str, get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name} cannot be imported: {error}") from None


# ---- options


def read_options(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return `values` as a `kind`: a dataclass of text, numbers, flags, and tuples and mappings of text.

    Raises ValueError with every fault: unknown keys, missing keys, and values of another type.
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
    """Raises TypeError with the name of the type that is needed."""
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
