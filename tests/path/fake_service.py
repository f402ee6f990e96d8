"""What servers of rented models have in common in tests: scripted answers, and a record of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Refusal:
    """Given instead of an answer."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """The request is none that the real API would take."""


class FakeService:
    """Answers each call by the next of `script`."""

    def __init__(self) -> None:
        self.port = 0
        self.script: list[Any] = []
        self.bodies: list[Any] = []
        self.headers: list[Mapping[str, str]] = []
        self.num_listed = 0
        self.application = web.Application(client_max_size=64 * 2**20)

    async def start(self) -> None:
        self._runner = web.AppRunner(self.application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def is_idle(self) -> None:
        """As `FakeEngine`: nothing runs on behind an answer here."""
