"""Who the configured client keys belong to, and what each of them may."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from gateway.access import key_hash
from gateway.access.meters import Terms
from gateway.config.loading import secret
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a client key belongs to."""

    tenant: str
    may_prioritise: bool
    tools: tuple[str, ...] = ()
    """Names and globs of the gateway's tools that it may use."""
    id: str = ""
    """Of the key: its name, or where it is kept."""
    urgency: int = 0
    """Class of its turns, higher first."""
    weight: float = 1.0
    """Of its tenant, in the fair share."""
    models: tuple[str, ...] = ("*",)
    """Names and globs of the engine models that it may use."""
    terms: Terms | None = None
    """None: nothing is limited."""
    cache_salt: str = ""
    """Of its tenant. Empty: tenants share engines' caches."""


def callers(settings: Settings) -> dict[str, Caller]:
    """Hash of a client key -> who it belongs to; empty when no key is asked for. Raises ConfigError."""
    found: dict[str, Caller] = {}
    salts = _salts(settings)
    for entry in settings.keys:
        hashed = hash_of(entry.key)
        if hashed in found or any(caller.id == entry.id for caller in found.values()):
            raise ConfigError(f"keys: {entry.id} is there twice: give each entry a key and a `name` of its own")
        if entry.limits.budget_cost is not None and "*" not in settings.prices:
            raise ConfigError(
                f"keys: {entry.id}: limits.budget_cost needs a price of every model: give `prices` an entry `*`"
            )
        found[hashed] = Caller(
            entry.tenant,
            entry.may_prioritise,
            entry.tools,
            entry.id,
            entry.urgency,
            entry.weight,
            entry.models,
            Terms.of(entry.id, entry.limits),
            salts.get(entry.tenant, ""),
        )
    return found


def _salts(settings: Settings) -> dict[str, str]:
    """Of each tenant that wants a cache of its own. From its first key that says so, which gateways have alike and
    others do not know."""
    salts: dict[str, str] = {}
    for entry in settings.keys:
        if entry.isolate_cache:
            told = f"{entry.tenant}\n{hash_of(entry.key)}"
            salts.setdefault(
                entry.tenant, blake2b(told.encode(), digest_size=32, person=b"cache salt").hexdigest()
            )
    return salts


def hash_of(reference: str) -> str:
    """Of the key that is meant: from here on nobody holds the key itself. Raises ConfigError."""
    if key_hash.is_hash(reference):
        return reference
    value = secret(reference)
    return value if key_hash.is_hash(value) else key_hash.fast(value)


def plain_keys(settings: Settings) -> dict[str, str]:
    """Tenant -> a key of it, for commands that ask a running gateway. Raises ConfigError where there are only
    hashes."""
    if not settings.keys:
        return {"": ""}
    found = {}
    for entry in settings.keys:
        if not key_hash.is_hash(entry.key) and not key_hash.is_hash(value := secret(entry.key)):
            found[entry.tenant] = value
    if not found:
        raise ConfigError(
            "the configuration holds hashes of keys only: give this command one as `env:NAME` in `keys`"
        )
    return found
