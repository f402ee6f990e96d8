"""Takes over a changed configuration while requests run: all of it is checked first, then what can change does.

A request that has begun ends under the configuration that it began with.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gateway import config
from gateway.callers import callers
from gateway.settings import Settings
from gateway.transport import Timeouts

if TYPE_CHECKING:
    from gateway.app import App

LOG = logging.getLogger(__name__)

AT_RUN_TIME = frozenset(
    {
        *("engines", "hosts_file", "keys", "logging.level"),
        *("models.aliases", "models.side_model", "models.answer_any_model"),
        *("policy.max_wait_s", "policy.max_wait_plain_s"),
        *("stream.silent_queue_s", "stream.keep_alive_s"),
        *("limits.body_bytes", "limits.messages", "limits.tools", "limits.attempts"),
        *("timeouts.connect_s", "timeouts.first_byte_s", "timeouts.idle_s"),
    }
)
"""Keys that can change; every other one keeps its value until the gateway is started again."""
ADDABLE = ("vllm", "sglang", "dynamo")
"""Kinds of engines that need nothing else to be started for them."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key of which the configuration now says something else."""

    key: str
    before: Any
    after: Any

    @property
    def applies(self) -> bool:
        return self.key in AT_RUN_TIME

    def __str__(self) -> str:
        told = f"{self.key}: {_short(self.before)} -> {_short(self.after)}"
        return told if self.applies else f"{told} (only after a restart)"


def changes(old: Settings, new: Settings) -> Iterator[Change]:
    """What differs, by key. Secrets are references here and stay so."""
    for key, _ in config.leaf_keys():
        before, after = _at(old, key), _at(new, key)
        if before != after:
            yield Change(key, before, after)


def effective(old: Settings, new: Settings) -> Settings:
    """`old`, with the changes that can be made while it runs."""
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
    """Make a running gateway follow `new`; what differs. Raises ConfigError, and then nothing has changed."""
    old = app.path.settings
    settings, keys = effective(old, new), callers(new)
    config.refuse_exposure(settings)
    before = {address.name: address for address in config.addresses(old)}
    after = {address.name: address for address in config.addresses(settings)}
    for name, address in after.items():
        if before.get(name) != address and address.kind not in ADDABLE:
            raise config.ConfigError(f"engine {name}: one of kind {address.kind} can only be added by a restart")
    app.path.keys.become(keys)
    _use(app, settings)
    for name in before:
        if before[name] != after.get(name):
            app.monitor.remove(name)
    await asyncio.gather(*(app.monitor.add(after[name]) for name in after if before.get(name) != after[name]))
    return list(changes(old, new))


def _use(app: App, settings: Settings) -> None:
    """Requests that come from now on take this path; those under way keep theirs."""
    path, times = app.path, settings.timeouts
    forward = replace(path.answering.forward, timeouts=Timeouts(times.connect_s, times.first_byte_s, times.idle_s))
    app.path = replace(
        path,
        settings=settings,
        answering=replace(path.answering, settings=settings, forward=forward),
        plain=replace(path.plain, forward=forward, attempts=settings.limits.attempts),
        admin=replace(path.admin, names=settings.models),
    )
    logging.getLogger().setLevel(settings.logging.level.upper())


class Reloading:
    """Follows SIGHUP for the body of a `with`: reads the configuration again and says what became of it."""

    def __init__(self, app: App, read: Callable[[], Settings]) -> None:
        """`read` raises ConfigError."""
        self._app = app
        self._read = read
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._begin)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reload(), name="reload")

    async def _reload(self) -> None:
        try:
            found = await reload(self._app, self._read())
        except config.ConfigError as error:
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
