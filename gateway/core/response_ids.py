"""Ids that the gateway gives to responses. An id shows the tenant of its response, without any memory.

An engine that accepts the id stores the response under it. So no secret is needed: if a client changes the tenant
in an id, no engine has a response under it.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b

_PREFIX = "resp_"
_GIVEN = re.compile(r"resp_tg([0-9a-f]{32})([0-9a-f]{16})")
"""vLLM and SGLang take ids of responses that begin with `resp_`."""
_RANDOM_BYTES, _OWNER_BYTES = 16, 8


def new_id(tenant: str) -> str:
    nonce = os.urandom(_RANDOM_BYTES).hex()
    return f"resp_tg{nonce}{_owner(nonce, tenant)}"


def is_given(response_id: str) -> bool:
    return _GIVEN.fullmatch(response_id) is not None


def is_anothers(response_id: str, tenant: str) -> bool:
    """Whether the gateway gave this id to another tenant."""
    parts = _GIVEN.fullmatch(response_id)
    return parts is not None and parts[2] != _owner(parts[1], tenant)


def scoped(request_id: str, tenant: str) -> str:
    """Return a client's own id of a request, or of its response, such that no other tenant can have the same."""
    rest = request_id.removeprefix(_PREFIX)
    prefix = _PREFIX if rest != request_id else ""
    return f"{prefix}{_owner('', tenant)}-{rest}"


def _owner(nonce: str, tenant: str) -> str:
    return blake2b(f"{nonce} {tenant}".encode("utf-8", "surrogatepass"), digest_size=_OWNER_BYTES).hexdigest()
