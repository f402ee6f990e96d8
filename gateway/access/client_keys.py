"""Client keys as they are kept: a fast hash of long random ones, a slow and salted one of those people chose."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b

from gateway.access.meters import CallerLimits, Meter
from gateway.config.loading import secret
from gateway.config.settings import Settings, is_loopback
from gateway.core.errors import ConfigError, Failure, Outcome, Refused
from gateway.core.excerpt import excerpt

PREFIX = "tg-"
RANDOM_BYTES = 32
LONG_CHARS = 32
"""A key of at least this length is taken for a random one, which nobody guesses: 128 bits even in hexadecimal."""
_HASH = re.compile(r"sha256:[0-9a-f]{64}|scrypt:[0-9a-f]{32}:[0-9a-f]{64}")
_N, _R, _P = 2**14, 8, 1
"""Cost of scrypt: 16 MiB and about 30 ms."""


def new_key() -> str:
    """256 random bits."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hashed(key: str) -> str:
    """What to write into the configuration instead of a key."""
    return fast(key) if len(key) >= LONG_CHARS else _slow(key, secrets.token_bytes(16))


def is_hash(text: str) -> bool:
    return _HASH.fullmatch(text) is not None


def is_slow(hashed_key: str) -> bool:
    return hashed_key.startswith("scrypt:")


def fast(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def matches(hashed_key: str, key: str) -> bool:
    """In a time that does not depend on how much of it agrees."""
    if not is_slow(hashed_key):
        return hmac.compare_digest(hashed_key, fast(key))
    return hmac.compare_digest(hashed_key, _slow(key, bytes.fromhex(hashed_key.split(":")[1])))


def _slow(key: str, salt: bytes) -> str:
    digest = hashlib.scrypt(key.encode(errors="surrogateescape"), salt=salt, n=_N, r=_R, p=_P, dklen=32)
    return f"scrypt:{salt.hex()}:{digest.hex()}"


# ---- who the configured client keys belong to, and what each of them may


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
    terms: CallerLimits | None = None
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
            CallerLimits.of(entry.id, entry.limits),
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
    if is_hash(reference):
        return reference
    value = secret(reference)
    return value if is_hash(value) else fast(value)


def plain_keys(settings: Settings) -> dict[str, str]:
    """Tenant -> a key of it, for commands that ask a running gateway. Raises ConfigError where there are only
    hashes."""
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


# ---- which caller a client key stands for

ANYBODY = Caller(tenant="default", may_prioritise=False, tools=("*",))
"""Everybody, while no keys are configured."""
MOST_WAITING = 64
"""Unknown keys that may wait for the slow comparison; further ones are refused as unknown."""


class Keys:
    """Looks callers up by a digest of their key: the time that takes says nothing about any key.

    A short key, whose hash is slow, is derived once in a thread, one at a time; from then on its digest is known.
    """

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        """`callers` by the hash of their key, as `key_hash` writes it. Empty: no key is asked for."""
        self._deriving = asyncio.Lock()
        self._num_waiting = 0
        self.become(callers)

    def become(self, callers: Mapping[str, Caller]) -> None:
        """From now on these are the keys; running requests keep what they were given."""
        self._callers = {h: caller for h, caller in callers.items() if not is_slow(h)}
        self._slow = {h: caller for h, caller in callers.items() if is_slow(h)}
        self._by_id = {caller.id: caller for caller in callers.values()}
        self.is_open = not callers

    @property
    def all_terms(self) -> list[CallerLimits]:
        """The limits of every key that has some."""
        return [caller.terms for caller in self._by_id.values() if caller.terms is not None]

    @property
    def all_meters(self) -> list[Meter]:
        """Those of all terms."""
        return [meter for terms in self.all_terms for meter in terms.meters]

    @property
    def num_tenants(self) -> int:
        """Whose keys there are."""
        return len({caller.tenant for caller in self._by_id.values()})

    def salt_of(self, tenant: str) -> str:
        """See `Caller.cache_salt`; of any tenant."""
        return next((caller.cache_salt for caller in self._by_id.values() if caller.tenant == tenant), "")

    def named(self, key_id: str) -> Caller | None:
        """The caller of a key by its name; None when there is no such key now."""
        return self._by_id.get(key_id)

    def at_once(self, headers: Mapping[str, str]) -> Caller | None:
        """Whose request this is, where that is plain. None: ask `known`."""
        if self.is_open:
            return None if "origin" in headers else ANYBODY
        return self._callers.get(fast(bearer(headers)))

    async def known(self, headers: Mapping[str, str]) -> Caller:
        """Whose request this is. Raises Refused."""
        if self.is_open and (origin := headers.get("origin")) and not _is_local(origin):
            text = (
                f"Without keys no web page may use the engines, and this request is of one of {excerpt(origin)}."
            )
            failure = Failure(403, "permission_error", f"{text} Configure `keys`.", code="foreign_origin")
            raise Refused(Outcome.FORBIDDEN, failure)
        caller = await self.caller(headers)
        if caller is None:
            text = "The API key is missing or not known here. Send it as `Authorization: Bearer <key>`."
            failure = Failure(401, "authentication_error", text, code="invalid_api_key")
            raise Refused(Outcome.UNAUTHORISED, failure)
        return caller

    async def caller(self, headers: Mapping[str, str]) -> Caller | None:
        """Whose request this is; None when its key is missing or wrong."""
        caller = self.at_once(headers)
        if caller is not None or self.is_open:
            return caller or ANYBODY
        if self._slow and 0 < len(key := bearer(headers)) < LONG_CHARS:
            return await self._derived(key)
        return None

    async def _derived(self, key: str) -> Caller | None:
        if self._num_waiting >= MOST_WAITING:
            return None
        self._num_waiting += 1
        try:
            async with self._deriving:
                for hashed in self._slow:
                    if await asyncio.to_thread(matches, hashed, key):
                        now = self._slow.get(hashed)  # other keys may be in force by now
                        if now is not None:
                            self._callers[fast(key)] = now
                        return now
        finally:
            self._num_waiting -= 1
        return None


def _is_local(origin: str) -> bool:
    """Of a page that this machine serves. Any other may have its visitor's browser ask a loopback address."""
    host = origin.partition("://")[2].partition("/")[0]
    return is_loopback((host if host.endswith("]") else host.rpartition(":")[0] or host).strip("[]"))


def bearer(headers: Mapping[str, str]) -> str:
    """The key that a request carries, as SDKs of OpenAI or Anthropic send it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def may_use(models: Iterable[str], model: str) -> bool:
    """Whether a key for these, names or globs, is for this engine model."""
    return any(glob in ("*", model) or fnmatchcase(model, glob) for glob in models)


def says_one_model(raw: bytes) -> bool:
    """Whether any reader of this body finds the same `model`, those too that take the first of two."""
    return raw.count(b'"model"') == 1 and b"\\u00" not in raw


def model_not_allowed(caller: Caller, asked: str) -> Refused:
    text = f"This key may not use the model {excerpt(asked)!r}. It may use: {', '.join(caller.models) or 'none'}."
    failure = Failure(403, "permission_error", text, param="model", code="model_not_allowed")
    return Refused(Outcome.FORBIDDEN, failure)
