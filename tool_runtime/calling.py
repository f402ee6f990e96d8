"""Calls code that is not ours: whatever it raises is a value, and a function that blocks runs in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from tool_runtime.types import OutcomeUnknown

T = TypeVar("T")


async def caught(call: Callable[[], Awaitable[object]]) -> object:
    """What `call` gives, or the exception that it raised. Only a cancellation of the running task passes."""
    try:
        return await call()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return OutcomeUnknown("the tool cancelled itself")  # a scope of a library, leaking
    except (Exception, SystemExit) as error:
        return error


async def in_thread(call: Callable[[], T]) -> T:
    """What a blocking `call` returns or raises. A thread cannot be stopped: when cancelled, this ends when the
    call does, so that its place stays taken for so long; a second cancellation leaves the thread behind."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    values: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            values.append(call())
        except BaseException as error:  # given back to the caller's task
            errors.append(error)
        with suppress(RuntimeError):  # the loop was closed and the thread left behind
            loop.call_soon_threadsafe(ended.set)

    # A thread of its own: a pool would bound all tools together, and the exit of the process would wait for it.
    threading.Thread(target=contextvars.copy_context().run, args=(target,), name="tool", daemon=True).start()
    try:
        await ended.wait()
    except asyncio.CancelledError:
        await ended.wait()
        raise
    if errors:
        raise errors[0]
    return values[0]
