"""Engines behind one name, such as the pods of a headless Kubernetes service: each address is an engine of its
own, as long as the name resolves to it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from urllib.parse import urlsplit

from gateway.engines.base import EngineAddress, KvEventSource
from gateway.engines.monitor import Monitor

LOG = logging.getLogger(__name__)

RESOLVE_S = 5.0
"""Time between two looks. CoreDNS lets its answers about services live for as long."""

Resolve = Callable[[str, int], Awaitable[Collection[str]]]
"""(host, port) -> IP addresses. Raises OSError."""


async def ip_addresses(host: str, port: int) -> frozenset[str]:
    """Raises OSError, also where the name has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(str(sockaddr[0]) for *_, sockaddr in found)


async def engines_behind(service: EngineAddress, resolve: Resolve = ip_addresses) -> list[EngineAddress]:
    """The engines that a name stands for now, by address. Raises OSError."""
    parts = urlsplit(service.base_url)
    host, port = parts.hostname or "", parts.port or 80
    own_name = "" if service.name == parts.netloc else f"{service.name}-"
    found = []
    for ip in sorted(await resolve(host, port)):
        shown = f"[{ip}]" if ":" in ip else ip
        url = f"{parts.scheme}://{shown}:{port}{parts.path}"
        sources = service.kv_events and tuple(_moved(source, host, shown) for source in service.kv_events)
        found.append(
            replace(service, base_url=url, name=f"{own_name}{shown}:{port}", kv_events=sources, resolves_all=False)
        )
    return found


def _moved(source: KvEventSource, host: str, ip: str) -> KvEventSource:
    old, new = f"//{host}:", f"//{ip}:"
    replay_url = source.replay_url
    return KvEventSource(source.url.replace(old, new), replay_url and replay_url.replace(old, new))


class Services:
    """Owns a task for each name that is watched."""

    def __init__(
        self,
        monitor: Monitor,
        changed: Callable[[], Awaitable[None]],
        resolve: Resolve = ip_addresses,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`changed` is awaited after engines came or went."""
        self._monitor = monitor
        self._changed = changed
        self._resolve = resolve
        self._sleep = sleep
        self._tasks: dict[EngineAddress, asyncio.Task[None]] = {}
        self._behind: dict[EngineAddress, set[str]] = {}
        """Names of the engines of each."""

    async def follow(self, services: Collection[EngineAddress]) -> None:
        """Watch these names from now on, and no others; returns when each was looked up once."""
        gone = self._tasks.keys() - set(services)
        for service in gone:
            self._tasks.pop(service).cancel()
            for name in self._behind.pop(service):
                self._monitor.remove_engine(name)
        new = [service for service in services if service not in self._tasks]
        self._behind |= {service: set() for service in new}
        await asyncio.gather(*map(self._look, new))
        for service in new:
            self._tasks[service] = asyncio.create_task(self._watch(service), name=f"resolve {service.name}")

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _watch(self, service: EngineAddress) -> None:
        while True:
            await self._sleep(RESOLVE_S)
            try:
                await self._look(service)
            except Exception:  # one bad look must not end the watch
                LOG.exception("service %s cannot be followed", service.name)

    async def _look(self, service: EngineAddress) -> None:
        """Add engines before others are removed. Where the name resolves to nothing, those that there are stay:
        they are polled, and a dead one is seen by that."""
        try:
            engines = await engines_behind(service, self._resolve)
        except OSError as error:
            LOG.warning("service %s: its name cannot be resolved: %s", service.name, error)
            return
        wanted, known = {engine.name: engine for engine in engines}, self._behind[service]
        taken = {engine.name for engine in self._monitor.engines} - known
        new = [engine for name, engine in wanted.items() if name not in known and name not in taken]
        gone = known - wanted.keys() if wanted else set()
        known |= {engine.name for engine in new}
        await asyncio.gather(*map(self._monitor.add_engine, new))
        for name in gone:
            LOG.info("engine %s: %s does not resolve to it any more", name, service.name)
            known.discard(name)
            self._monitor.remove_engine(name)
        if new or gone:
            await self._changed()
