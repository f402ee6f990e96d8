"""Event loops that tests run on, each for one transport: pytest knows a test's loop before its fixtures run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import uvloop

LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


class FastOnAsyncio(asyncio.SelectorEventLoop):
    """The fast transport where uvloop is not installed, or where a test moves the time, which uvloop refuses."""


AIOHTTP: dict[str, LoopFactory] = {"aiohttp": asyncio.SelectorEventLoop}
FAST: dict[str, LoopFactory] = {"fast": uvloop.new_event_loop}
FAST_ON_ASYNCIO: dict[str, LoopFactory] = {"fast on asyncio": FastOnAsyncio}


def can_move_time() -> bool:
    return isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)


def carrier() -> str:
    """The transport that the running loop stands for."""
    return "aiohttp" if type(asyncio.get_running_loop()) is asyncio.SelectorEventLoop else "fast"
