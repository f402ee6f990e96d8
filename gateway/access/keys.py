"""Client keys and the admin key: how they are kept, whose they are, and what they open."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.access.limits import CallerLimits, Meter
from gateway.config.loading import secret
from gateway.config.settings import Settings, is_loopback
from gateway.core.errors import ConfigError, Failure, Outcome, Refused
from gateway.core.fields import excerpt

# ---- how keys are kept: a fast hash of long random keys, a slow and salted hash of keys that people chose

PREFIX = "tg-"
RANDOM_BYTES = 32
LONG_CHARS = 32
"""A key of at least this length is taken for a random one, which cannot be guessed: it has 128 bits even in
hexadecimal."""
_HASH = re.compile(r"sha256:[0-9a-f]{64}|scrypt:[0-9a-f]{32}:[0-9a-f]{64}")
_N, _R, _P = 2**14, 8, 1
"""Cost of scrypt: 16 MiB and about 30 ms."""


def new_key() -> str:
    """Return a key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hashed(key: str) -> str:
    """Return the hash to write into the configuration instead of a key."""
    return fast(key) if len(key) >= LONG_CHARS else _slow(key, secrets.token_bytes(16))


def is_hash(text: str) -> bool:
    return _HASH.fullmatch(text) is not None


def is_slow(hashed_key: str) -> bool:
    return hashed_key.startswith("scrypt:")


def fast(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def matches(hashed_key: str, key: str) -> bool:
    """Compare in a time that does not depend on how many characters agree."""
    if not is_slow(hashed_key):
        return hmac.compare_digest(hashed_key, fast(key))
    return hmac.compare_digest(hashed_key, _slow(key, bytes.fromhex(hashed_key.split(":")[1])))


def _slow(key: str, salt: bytes) -> str:
    digest = hashlib.scrypt(key.encode(errors="surrogateescape"), salt=salt, n=_N, r=_R, p=_P, dklen=32)
    return f"scrypt:{salt.hex()}:{digest.hex()}"


# ---- whose the configured keys are, and what each of them may do


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a client key, and the rights of the key."""

    tenant: str
    may_prioritise: bool
    tools: tuple[str, ...] = ()
    """Names and globs of the gateway's tools that the key may use."""
    id: str = ""
    """The name of the key, or its reference."""
    priority_class: int = 0
    """Priority class of its turns; higher classes go first."""
    weight: float = 1.0
    """Weight of its tenant in the fair share."""
    models: tuple[str, ...] = ("*",)
    """Names and globs of the engine models that the key may use."""
    limits: CallerLimits | None = None
    """None: no limits."""
    cache_salt: str = ""
    """Cache salt of its tenant. Empty: the tenant shares the caches of engines with others."""


def callers(settings: Settings) -> dict[str, Caller]:
    """Return the callers by the hash of their key; empty when no key is required. Raises ConfigError."""
    found: dict[str, Caller] = {}
    salts = _salts(settings)
    for entry in settings.keys:
        key_hash = hash_of(entry.key)
        if key_hash in found or any(caller.id == entry.id for caller in found.values()):
            raise ConfigError(f"keys: {entry.id} is there twice: give each entry a key and a `name` of its own")
        if entry.limits.budget_cost is not None and "*" not in settings.prices:
            raise ConfigError(
                f"keys: {entry.id}: limits.budget_cost needs a price of every model: give `prices` an entry `*`"
            )
        found[key_hash] = Caller(
            entry.tenant,
            entry.may_prioritise,
            entry.tools,
            entry.id,
            entry.urgency,
            entry.weight,
            entry.models,
            CallerLimits.of(entry.id, entry.limits),
            salts.get(entry.tenant, ""),
        )
    return found


def _salts(settings: Settings) -> dict[str, str]:
    """Return a salt for each tenant with a cache of its own. It is derived from the tenant's first such key, which
    all gateways have and other tenants do not know."""
    salts: dict[str, str] = {}
    for entry in settings.keys:
        if entry.isolate_cache and entry.tenant not in salts:
            text = f"{entry.tenant}\n{hash_of(entry.key)}".encode()
            salts[entry.tenant] = hashlib.blake2b(text, digest_size=32, person=b"cache salt").hexdigest()
    return salts


def hash_of(reference: str) -> str:
    """Return the hash of the key behind a reference. The gateway keeps only the hash. Raises ConfigError."""
    if is_hash(reference):
        return reference
    value = secret(reference)
    return value if is_hash(value) else fast(value)


def plain_keys(settings: Settings) -> dict[str, str]:
    """Return one key for each tenant, for commands that ask a running gateway. Raises ConfigError when only hashes
    are configured."""
    if not settings.keys:
        return {"": ""}
    found = {}
    for entry in settings.keys:
        if not is_hash(entry.key) and not is_hash(value := secret(entry.key)):
            found[entry.tenant] = value
    if not found:
        raise ConfigError(
            "the configuration holds hashes of keys only: give this command one as `env:NAME` in `keys`"
        )
    return found


# ---- from the key of a request to its caller

ANONYMOUS = Caller(tenant="default", may_prioritise=False, tools=("*",))
"""The caller of every request while no keys are configured."""
MOST_WAITING = 64
"""Unknown keys that may wait for the slow comparison. Further unknown keys are refused at once."""
_NO_KEY = Failure(
    401,
    "authentication_error",
    "The API key is missing or not known here. Send it as `Authorization: Bearer <key>`.",
    code="invalid_api_key",
)


class Keys:
    """All callers by a digest of their key, so that the time of a look-up says nothing about any key.

    A short key has a slow hash. It is derived once, in a thread and one at a time; then its digest is known.
    """

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        """`callers`: by the hash of their key. Empty: no key is required."""
        self._deriving = asyncio.Lock()
        self._num_waiting = 0
        self.become(callers)

    def become(self, callers: Mapping[str, Caller]) -> None:
        """Replace all keys. Running requests keep their caller."""
        self._callers = {h: caller for h, caller in callers.items() if not is_slow(h)}
        self._slow = {h: caller for h, caller in callers.items() if is_slow(h)}
        self._by_id = {caller.id: caller for caller in callers.values()}
        self.is_open = not callers

    @property
    def all_limits(self) -> list[CallerLimits]:
        """The limits of every key that has some."""
        return [caller.limits for caller in self._by_id.values() if caller.limits is not None]

    @property
    def all_meters(self) -> list[Meter]:
        """The meters of all limits."""
        return [meter for limits in self.all_limits for meter in limits.meters]

    @property
    def num_tenants(self) -> int:
        """Tenants that have a key."""
        return len({caller.tenant for caller in self._by_id.values()})

    def salt_of(self, tenant: str) -> str:
        """Return the cache salt of any tenant, as in `Caller.cache_salt`."""
        return next((caller.cache_salt for caller in self._by_id.values() if caller.tenant == tenant), "")

    def named(self, key_id: str) -> Caller | None:
        """Return the caller of the key with this name; None when there is no such key now."""
        return self._by_id.get(key_id)

    def at_once(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller of a request without waiting. None: `known` decides."""
        if self.is_open:
            return None if "origin" in headers else ANONYMOUS
        return self._callers.get(fast(bearer(headers)))

    async def known(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller of a request. Raises Refused."""
        if self.is_open and (origin := headers.get("origin")) and not _is_local(origin):
            text = (
                f"Without keys no web page may use the engines, and this request is of one of {excerpt(origin)}."
            )
            failure = Failure(403, "permission_error", f"{text} Configure `keys`.", code="foreign_origin")
            raise Refused(Outcome.FORBIDDEN, failure)
        caller = await self.caller(headers)
        if caller is None:
            raise Refused(Outcome.UNAUTHORISED, _NO_KEY)
        return caller

    async def caller(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller of a request; None when its key is missing or wrong."""
        caller = self.at_once(headers)
        if caller is not None or self.is_open:
            return caller or ANONYMOUS
        if self._slow and 0 < len(key := bearer(headers)) < LONG_CHARS:
            return await self._derived(key)
        return None

    async def _derived(self, key: str) -> Caller | None:
        if self._num_waiting >= MOST_WAITING:
            return None
        self._num_waiting += 1
        try:
            async with self._deriving:
                for slow_hash in self._slow:
                    if await asyncio.to_thread(matches, slow_hash, key):
                        caller = self._slow.get(slow_hash)  # other keys may be in force by now
                        if caller is not None:
                            self._callers[fast(key)] = caller
                        return caller
        finally:
            self._num_waiting -= 1
        return None


def _is_local(origin: str) -> bool:
    """Whether a page is served by this machine. Any other page could make its visitor's browser send requests to a
    loopback address."""
    host = origin.partition("://")[2].partition("/")[0]
    return is_loopback((host if host.endswith("]") else host.rpartition(":")[0] or host).strip("[]"))


def bearer(headers: Mapping[str, str]) -> str:
    """Return the key that a request carries, as the SDKs of OpenAI and Anthropic send it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def may_use(models: Iterable[str], model: str) -> bool:
    """Whether a key for these names or globs may use this engine model."""
    return any(glob in ("*", model) or fnmatchcase(model, glob) for glob in models)


def says_one_model(raw: bytes) -> bool:
    """Whether every reader of this body finds the same `model`, including readers that take the first of two."""
    return raw.count(b'"model"') == 1 and b"\\u00" not in raw


def model_not_allowed(caller: Caller, model: str, param: str = "model") -> Refused:
    text = f"This key may not use the model {excerpt(model)!r}. It may use: {', '.join(caller.models) or 'none'}."
    failure = Failure(403, "permission_error", text, param=param, code="model_not_allowed")
    return Refused(Outcome.FORBIDDEN, failure)


# ---- access to the gateway itself: metrics, health, and views of one tenant or of all

_NO_ADMIN_KEY = Failure(
    401,
    "authentication_error",
    "This needs the admin key: `Authorization: Bearer <admin.key>`.",
    code="invalid_api_key",
)
_ELSEWHERE = Failure(404, "not_found_error", "Metrics are on the admin listener (admin.port).")
_GUARDED = Failure(
    403,
    "permission_error",
    "Metrics tell about all tenants: with keys they need admin.key, or their own listener (admin.port).",
)


@dataclass(frozen=True, slots=True)
class Viewer:
    """The reader of a view, and what the view may show."""

    tenant: str | None
    """None: an administrator, for all tenants."""
    tools: tuple[str, ...] = ("*",)
    models: tuple[str, ...] = ("*",)
    limits: CallerLimits | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Decides what a request may see of the gateway. `is_private`: the request came to the admin listener."""

    keys: Keys
    admins: Keys | None
    """Holds the admin key. None: there is none, and every request at the admin listener is an administrator's."""
    has_listener: bool
    """Whether there is an admin listener."""

    @staticmethod
    def of(settings: Settings, keys: Keys) -> Access:
        """Raises ConfigError when the admin key cannot be read."""
        admin = settings.admin
        admins = Keys({hash_of(admin.key): ANONYMOUS}) if admin.key else None
        return Access(keys, admins, admin.port is not None)

    @property
    def is_guarded(self) -> bool:
        """Whether a key is needed. A reload may change that. On loopback too: a proxy that ends TLS listens for
        others."""
        return not self.keys.is_open

    async def viewer(self, headers: Mapping[str, str], is_private: bool) -> Viewer | Failure:
        """Return whose views these headers open."""
        if await self._is_admin(headers, is_private):
            return Viewer(None)
        if is_private:
            return _NO_ADMIN_KEY
        caller = await self.keys.caller(headers)
        return _NO_KEY if caller is None else Viewer(caller.tenant, caller.tools, caller.models, caller.limits)

    async def metrics_failure(self, headers: Mapping[str, str], is_private: bool) -> Failure | None:
        """Return why metrics are not shown; None: they are shown."""
        if await self._is_admin(headers, is_private):
            return None
        if is_private or (self.admins is not None and not self.has_listener):
            return _NO_ADMIN_KEY
        if self.has_listener:
            return _ELSEWHERE
        return _GUARDED if self.is_guarded else None

    async def sees_engines(self, headers: Mapping[str, str], is_private: bool) -> bool:
        """Whether `/health` shows more than that the process lives."""
        return not (self.is_guarded or is_private) or isinstance(await self.viewer(headers, is_private), Viewer)

    async def _is_admin(self, headers: Mapping[str, str], is_private: bool) -> bool:
        if self.admins is None:
            return is_private
        return await self.admins.caller(headers) is not None
