"""What tests of security share: client keys of several tenants, and their headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.access.keys import hashed

ADMIN = "tg-the-administrator-s-own-key-0123456789"


def key_of(tenant: str) -> str:
    return f"tg-key-of-{tenant}-0123456789-0123456789"


def keys(*tenants: str, **more: Any) -> list[dict[str, Any]]:
    """One entry for each tenant; `more` holds for all."""
    return [{"key": hashed(key_of(t)), "name": f"key-{t}", "tenant": t, "tools": ["*"]} | more for t in tenants]


def by(tenant: str) -> Mapping[str, str]:
    """Headers of a tenant's request."""
    return {"Authorization": f"Bearer {key_of(tenant)}"}


def admin_key() -> dict[str, Any]:
    return {"key": hashed(ADMIN)}
