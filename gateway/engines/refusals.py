"""Whose field an engine refuses, from the text of its 400."""

from __future__ import annotations

import re

# Where engines put the name of a refused field: pydantic (`body.x`), serde (unknown field `x`), Dynamo
# (Unsupported parameter(s): `x`, `y`), vLLM (Got x 5 but ...). A name elsewhere, such as in a list of what was
# expected or in the client's own text that the engine repeats, is no complaint about it.
_BEFORE = (
    r"(?:body[.'\", ]+|unknown field |unsupported parameter\(s\): (?:`\w+`, )*|got |unexpected keyword argument )"
)
_EXPECTED = re.compile(r"expected one of.*", re.DOTALL)


def names_field(message: str, name: str) -> bool:
    """Whether an error text complains about the request field `name`."""
    complaint = rf"{_BEFORE}[`'\"]?{re.escape(name)}\b"
    return re.search(complaint, _EXPECTED.sub("", message), re.IGNORECASE) is not None
