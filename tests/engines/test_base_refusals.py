"""Laws of blame: a field is refused only where an engine says so."""

from __future__ import annotations

import pytest

from gateway.engines.base import names_field

# Dynamo 1.6.1 and vLLM 0.32 wrote these, but the one that begins with Got, which older vLLMs wrote.
COMPLAINTS = [
    ("Validation: Unsupported parameter(s): `priority`", "priority"),
    ("Validation: Unsupported parameter(s): `rid`, `priority`", "priority"),
    ("Got priority 5 but Priority scheduling is not enabled.", "priority"),
    ("1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.priority', 'input': 'x'}", "priority"),
    (
        "Failed to convert request: invalid nvext: unknown field `extra_fields`, expected one of `annotations`",
        "extra_fields",
    ),
]
OTHERS = [
    (
        "unknown field `bogus`, expected one of `priority`, `strict_priority`, `osl`, `speculative_prefill`",
        "osl",
    ),
    ("tools.0.function.parameters.properties.priority: unknown type", "priority"),
    ("The model `priority` does not exist.", "priority"),
    ("Validation: Unsupported parameter(s): `priority_class`", "priority"),
    ("This model's maximum context length is 8192 tokens.", "priority"),
    ("", "priority"),
]


@pytest.mark.parametrize(("message", "name"), COMPLAINTS)
def test_a_complaint_names_its_field(message: str, name: str) -> None:
    assert names_field(message, name)


@pytest.mark.parametrize(("message", "name"), OTHERS)
def test_a_name_elsewhere_is_no_complaint(message: str, name: str) -> None:
    assert not names_field(message, name)
