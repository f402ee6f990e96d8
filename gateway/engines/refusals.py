"""Whose field an engine refuses, from the text of its 400."""

from __future__ import annotations

import re

# Where engines put the name of a refused field: pydantic (`body.x`), serde (unknown field `x`), Dynamo
# (Unsupported parameter(s): `x`, `y`), vLLM (Got x 5 but ..., x 5 is out of range). A name elsewhere, such as in
# a list of what was expected or in the client's own text that the engine repeats, is no complaint about it.
_CONTEXT = (
    r"(?:body[.'\", ]+|unknown field |unsupported parameter\(s\): (?:`\w+`, )*|got |unexpected keyword argument )"
)
_EXPECTED = re.compile(r"expected one of.*", re.DOTALL)


def names_field(message: str, name: str) -> bool:
    """Whether an error text complains about the request field `name`."""
    said = _EXPECTED.sub("", message)
    return (
        re.search(
            rf"{_CONTEXT}[`'\"]?{re.escape(name)}\b|^{re.escape(name)} .{{1,40}} is out of range", said, re.I
        )
        is not None
    )
