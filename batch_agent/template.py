"""Fills task templates: `str.format`, but for braces that cannot be meant as fields, such as those of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from string import Formatter
from typing import Any

_FIELD = re.compile(r"\{([A-Za-z_]\w*)(?:[.\[][^{}!:]*)?(?:![rsa])?(?::[^{}]*)?\}")
_ROOT = re.compile(r"[A-Za-z_]\w*")


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with the fields of `values` in it.

    A template that `str.format` cannot read (`Answer as {"a": 1}: {question}`) has its fields filled and nothing
    else changed; there a doubled brace stays doubled. Raises ValueError for a field that is not in `values`.
    """
    try:
        if _is_plain(template):
            return template.format(**values)
        return _FIELD.sub(lambda match: match[0].format(**values), template)
    except KeyError as error:
        raise ValueError(f"missing template variable {error.args[0]!r}") from None
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"cannot fill the template: {error}") from None


@lru_cache(maxsize=64)
def _is_plain(template: str) -> bool:
    """Whether `str.format` reads it, with names for all fields."""
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError:
        return False
    return all(_ROOT.match(field) for field in fields)
