"""What a docstring says of a function and of its parameters, in Google, NumPy or Sphinx style."""

from __future__ import annotations

import inspect
import re

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
"""Of a section, and of one parameter in it once its indentation is gone."""
FIRST_SECTION = re.compile(
    r"^(?:(?:args|arguments|parameters|returns|yields|raises|examples?|notes?):[ ]*$|\S.*\n-{3,}$|:\w+.*:)",
    re.M | re.I,
)


def summary_of(text: str) -> str:
    """All before the first section."""
    return FIRST_SECTION.split(inspect.cleandoc(text), maxsplit=1)[0].strip()


def parameters_of(text: str) -> dict[str, str]:
    """The description of each parameter that has one."""
    text = inspect.cleandoc(text) + "\n"
    return {
        name: " ".join(description.split())
        for section, entry in STYLES
        if (found := section.search(text)) is not None
        for name, description in entry.findall(inspect.cleandoc("\n" + found[1]))
        if description.strip()
    }
