"""Who may see what of the gateway itself: metrics, health, and the views of one tenant or of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.access.client_keys import ANYBODY, Caller, Keys, hash_of
from gateway.access.meters import CallerLimits
from gateway.config.settings import Settings
from gateway.core.errors import Failure

_NO_KEY = Failure(
    401,
    "authentication_error",
    "The API key is missing or not known here. Send it as `Authorization: Bearer <key>`.",
    code="invalid_api_key",
)
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
    "Metrics tell about all tenants: on a public address they need admin.key, or their own listener (admin.port).",
)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whose views are asked for."""

    tenant: str | None
    """None: an administrator, who sees all of them."""
    tools: tuple[str, ...] = ("*",)
    models: tuple[str, ...] = ("*",)
    terms: CallerLimits | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """The rules. `is_private`: asked on the admin listener."""

    keys: Keys
    admins: Keys | None
    """Those of the admin key. None: there is none, and whoever reaches the admin listener is an administrator."""
    has_listener: bool
    is_public: bool
    """Other machines reach the gateway."""

    @staticmethod
    def of(settings: Settings, keys: Keys) -> Access:
        """Raises ConfigError when the admin key cannot be read."""
        admin = settings.admin
        admins = Keys({hash_of(admin.key): ANYBODY}) if admin.key else None
        return Access(keys, admins, admin.port is not None, not settings.listen.is_loopback)

    @property
    def is_guarded(self) -> bool:
        """Other machines reach it, and it asks them for keys, as a reload may have it."""
        return self.is_public and not self.keys.is_open

    async def viewer(self, headers: Mapping[str, str], is_private: bool) -> Viewer | Failure:
        """Whose views these headers open."""
        if await self._is_admin(headers, is_private):
            return Viewer(None)
        if is_private:
            return _NO_ADMIN_KEY
        caller = await self.keys.caller(headers)
        return _NO_KEY if caller is None else viewer_of(caller)

    async def metrics_failure(self, headers: Mapping[str, str], is_private: bool) -> Failure | None:
        """Why they are not shown; None: they are."""
        if await self._is_admin(headers, is_private):
            return None
        if is_private or (self.admins is not None and not self.has_listener):
            return _NO_ADMIN_KEY
        if self.has_listener:
            return _ELSEWHERE
        return _GUARDED if self.is_guarded else None

    async def sees_engines(self, headers: Mapping[str, str], is_private: bool) -> bool:
        """Whether `/health` tells more than that the process lives."""
        return not (self.is_guarded or is_private) or isinstance(await self.viewer(headers, is_private), Viewer)

    async def _is_admin(self, headers: Mapping[str, str], is_private: bool) -> bool:
        if self.admins is None:
            return is_private
        return await self.admins.caller(headers) is not None


def viewer_of(caller: Caller) -> Viewer:
    return Viewer(caller.tenant, caller.tools, caller.models, caller.terms)
