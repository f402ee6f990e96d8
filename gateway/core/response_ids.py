"""Ids that the gateway gives to responses. Whose a response is can be told from its id, without any memory.

An engine that takes the id stores the response under it. So no secret is needed: an id that is changed to another
tenant's is one that no engine has.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b

_OURS = re.compile(r"resp_tg([0-9a-f]{32})([0-9a-f]{16})")
"""vLLM and SGLang take ids that begin with `resp_`."""
_RANDOM_BYTES, _OWNER_BYTES = 16, 8


def new_id(tenant: str) -> str:
    nonce = os.urandom(_RANDOM_BYTES).hex()
    return f"resp_tg{nonce}{_owner(nonce, tenant)}"


def is_ours(response_id: str) -> bool:
    return _OURS.fullmatch(response_id) is not None


def is_anothers(response_id: str, tenant: str) -> bool:
    """Whether the gateway gave it to another tenant."""
    parts = _OURS.fullmatch(response_id)
    return parts is not None and parts[2] != _owner(parts[1], tenant)


def _owner(nonce: str, tenant: str) -> str:
    return blake2b(f"{nonce} {tenant}".encode("utf-8", "surrogatepass"), digest_size=_OWNER_BYTES).hexdigest()
