"""Says whether a value fits a JSON Schema.

Schemas come from tenants. A regular expression, or a schema that refers to itself, can take for ever. So a
`tool_runtime.killable.Killable` runs this file in its own process. The file imports nothing of the gateway.
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from referencing import Registry

FITS, MISFIT, UNUSABLE = "fits", "misfit", "unusable"
"""Kinds of answers."""
MAX_PROBLEM_CHARS = 500


def answer(request: dict[str, Any]) -> tuple[str, str]:
    """Return the kind of answer, and what is wrong. A request has `schema` and `value`."""
    schema = request["schema"]
    try:
        validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
        problem = best_match(validator.iter_errors(request["value"]))
    except Exception as error:  # a reference that leads nowhere, a pattern that is none
        return UNUSABLE, f"the schema cannot be applied: {error}"[:MAX_PROBLEM_CHARS]
    if problem is None:
        return FITS, ""
    return MISFIT, f"{problem.json_path}: {problem.message}"[:MAX_PROBLEM_CHARS]
