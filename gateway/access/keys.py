"""Which caller a client key stands for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from gateway.access import key_hash
from gateway.access.callers import Caller
from gateway.access.meters import Meter, Terms
from gateway.config.section import is_loopback
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.excerpt import excerpt

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
        self._callers = {h: caller for h, caller in callers.items() if not key_hash.is_slow(h)}
        self._slow = {h: caller for h, caller in callers.items() if key_hash.is_slow(h)}
        self._by_id = {caller.id: caller for caller in callers.values()}
        self.is_open = not callers

    @property
    def all_terms(self) -> list[Terms]:
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
        return self._callers.get(key_hash.fast(bearer(headers)))

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
        if self._slow and 0 < len(key := bearer(headers)) < key_hash.LONG_CHARS:
            return await self._derived(key)
        return None

    async def _derived(self, key: str) -> Caller | None:
        if self._num_waiting >= MOST_WAITING:
            return None
        self._num_waiting += 1
        try:
            async with self._deriving:
                for hashed in self._slow:
                    if await asyncio.to_thread(key_hash.matches, hashed, key):
                        now = self._slow.get(hashed)  # other keys may be in force by now
                        if now is not None:
                            self._callers[key_hash.fast(key)] = now
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
