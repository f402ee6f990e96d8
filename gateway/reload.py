"""Takes over a changed configuration while requests run: checks all of it first, then applies what can change.

A request ends under the configuration with which it began: it keeps the values that it read then from the one
holder (`live_settings`), which is written here alone.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.access.keys import Caller, callers
from gateway.config import loading
from gateway.config.loading import refuse_missing
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from gateway.engines.base import EngineAddress
from gateway.engines.kinds import adapter_of

if TYPE_CHECKING:
    from gateway.app import App

LOG = logging.getLogger(__name__)

AT_RUN_TIME = frozenset(
    {
        *("engines", "hosts_file", "keys", "logging.level"),
        *("models.aliases", "models.side_model", "models.answer_any_model"),
        *("policy.max_wait_s", "policy.max_wait_plain_s"),
        *("stream.silent_queue_s", "stream.keep_alive_s"),
        *("limits.body_bytes", "limits.messages", "limits.tools", "limits.values", "limits.attempts"),
        *("timeouts.connect_s", "timeouts.first_byte_s", "timeouts.idle_s"),
    }
)
"""Keys that can change; all others keep their values until a restart."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose value in the configuration differs."""

    key: str
    before: Any
    after: Any

    @property
    def applies(self) -> bool:
        return self.key in AT_RUN_TIME

    def __str__(self) -> str:
        text = f"{self.key}: {_short(self.before)} -> {_short(self.after)}"
        return text if self.applies else f"{text} (only after a restart)"


def changes(old: Settings, new: Settings) -> Iterator[Change]:
    """Yield the differences by key. Secrets are references here and stay so."""
    for key, _ in loading.leaf_keys():
        before, after = _at(old, key), _at(new, key)
        if before != after:
            yield Change(key, before, after)


def effective(old: Settings, new: Settings) -> Settings:
    """Return `old` with the changes that can be made while the gateway runs."""
    settings = old
    for change in changes(old, new):
        if change.applies:
            section, _, leaf = change.key.rpartition(".")
            update = {leaf: change.after}
            if section:
                update = {section: getattr(settings, section).model_copy(update=update)}
            settings = settings.model_copy(update=update)
    return settings


async def reload(app: App, new: Settings) -> list[Change]:
    """Make a running gateway follow `new`. Return the differences. Raises ConfigError, and then nothing has
    changed."""
    old = app.settings.current
    settings = effective(old, new)
    keys, addresses = callers(settings), loading.addresses(settings)
    loading.refuse_exposure(settings)
    refuse_missing(settings, addresses)
    before, after = _by_name(app.addresses), _by_name(addresses)
    for name, address in after.items():
        if before.get(name) != address and not _can_be_added(address):
            raise ConfigError(f"engine {name}: one of kind {address.kind} can only be added by a restart")
    found = list(changes(old, new))
    app.settings.become(settings)
    app.parts.handler.keys.become(keys)
    app.parts.handler.limiter.counters.look()
    logging.getLogger().setLevel(settings.logging.level.upper())
    found += _in_files({"engines", "hosts_file"}, before, after, found)
    found += _in_files({"keys"}, _by_id(app.callers), _by_id(keys), found)
    app.addresses, app.callers = addresses, keys
    await app.follow_services()
    await _exchange_engines(app, _single(before), _single(after))
    return found


def _can_be_added(address: EngineAddress) -> bool:
    """Return whether nothing else has to start for it: an embedded engine, or the throttling of its calls."""
    return bool(address.base_url) and not adapter_of(address.kind).throttles


async def _exchange_engines(
    app: App, before: Mapping[str, EngineAddress], after: Mapping[str, EngineAddress]
) -> None:
    """Poll new engines before old ones are removed, so that some engine is there all the time."""
    await asyncio.gather(*(app.parts.monitor.add_engine(after[name]) for name in after if name not in before))
    for name in before:
        if before[name] != after.get(name):
            app.parts.monitor.remove_engine(name)
    others = [after[name] for name in before if before[name] != after.get(name, before[name])]
    await asyncio.gather(*(app.parts.monitor.add_engine(address) for address in others))
    await app.follow_kv_events()


def _single(addresses: Mapping[str, EngineAddress]) -> dict[str, EngineAddress]:
    """Return those that are one engine each."""
    return {name: address for name, address in addresses.items() if not address.resolves_all}


def _in_files(
    keys: set[str], before: Mapping[str, object], after: Mapping[str, object], found: Iterable[Change]
) -> Iterator[Change]:
    """Yield a difference by name where none of these keys differs: a file that one refers to has changed."""
    if before != after and keys.isdisjoint(change.key for change in found):
        names = (name if before.get(name) == what else f"{name} (new)" for name, what in after.items())
        yield Change(min(keys), tuple(before), tuple(names))


def _by_name(addresses: Iterable[EngineAddress]) -> dict[str, EngineAddress]:
    return {address.name: address for address in addresses}


def _by_id(callers: Mapping[str, Caller]) -> dict[str, tuple[str, Caller]]:
    """Return the client keys by id, with their hashes."""
    return {caller.id: (hashed, caller) for hashed, caller in callers.items()}


class Reloading:
    """Follows SIGHUP for the body of a `with`: reads the configuration again and prints the result."""

    def __init__(self, app: App, read: Callable[[], Settings]) -> None:
        """`read` raises ConfigError."""
        self._app = app
        self._read = read
        self._task: asyncio.Task[None] | None = None
        self._is_due = False

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._begin)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._is_due = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="reload")

    async def _run(self) -> None:
        """Reload, and once more after a signal during a reload, which may have read the file before the change."""
        while self._is_due:
            self._is_due = False
            await self._reload()

    async def _reload(self) -> None:
        try:
            found = await reload(self._app, self._read())
        except ConfigError as error:
            faults = "; ".join(line.strip() for line in str(error).splitlines())
            LOG.error("the configuration is wrong, and nothing was changed: %s", faults)
            return
        lines = [f"  {change}" for change in found] or ["  nothing has changed"]
        print("\n".join(["The configuration was read again:", *lines]), flush=True)


def _at(settings: Settings, key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        text = ", ".join(map(_short, value)) or "none"
    elif isinstance(value, float):
        text = f"{value:g}"
    else:
        text = getattr(value, "url", None) or getattr(value, "key", "")[:20] or str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
