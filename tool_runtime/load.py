"""Finds tools by the names that a configuration gives them. Loading runs their code: it is trusted."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isfunction
from typing import Any

from tool_runtime import tools
from tool_runtime.define import define
from tool_runtime.types import Tool

GROUP = "turngate.tools"
"""Of the entry points with which an installed package offers tools."""


def builtin_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(tools.__path__))


def load(name: str, settings: Mapping[str, Any] | None = None) -> list[Tool]:
    """The tools of `module:attribute`, of a built-in, or of an entry point, in this order.

    Each is a Tool, several of them, a function that becomes one, or a function named `build` that takes the
    settings and gives one of these. Raises ValueError, for whoever wrote the configuration.
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
