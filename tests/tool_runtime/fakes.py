"""A tool that takes its time, and a runtime that remembers what it told its listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect, Execution, Json, Limits, Result, Tool

ANY_OBJECT: Json = {"type": "object"}
ANN = Context("acme", "ann", "turn-1", "key-1")
BOB = Context("acme", "bob", "turn-2", "key-1")
EVE = Context("rival", "eve", "turn-3", "key-2")


@dataclass
class Slow:
    """Answers with its number of starts after `seconds`, or as `answer` does."""

    seconds: float = 1.0
    answer: Callable[[Json], object] | None = None
    started: list[tuple[Json, Context]] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0
    num_cancelled: int = 0

    async def run(self, arguments: Json, context: Context) -> object:
        self.started.append((arguments, context))
        number = len(self.started)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1
        return f"answer {number}" if self.answer is None else self.answer(arguments)

    def tool(self, effect: Effect = Effect.READ_ONLY, *, options: Any = None, **limits: Any) -> Tool:
        return Tool(
            name="slow",
            description="",
            parameters=ANY_OBJECT,
            run=self.run,
            effect=effect,
            limits=Limits(**limits),
            **(options or {}),
        )


class Observed:
    """A runtime on the running loop's clock."""

    def __init__(self, *tools: Tool, **options: Any) -> None:
        self.audited: list[Execution] = []
        self.results: list[Result] = []
        self.runtime = ToolRuntime(
            tools,
            clock=asyncio.get_running_loop().time,
            audit=self.audited.append,
            answered=self.results.append,
            **options,
        )

    def begin(
        self, arguments: str = "{}", context: Context = ANN, *, timeout_s: float | None = None, name: str = "slow"
    ) -> asyncio.Task[Result]:
        call = Call("call", name, arguments)
        return asyncio.get_running_loop().create_task(self.runtime.run(call, context, timeout_s=timeout_s))


def raising(error: BaseException) -> Callable[[Json], object]:
    """An answer that is an error."""

    def answer(arguments: Json) -> object:
        raise error

    return answer


async def leave(caller: asyncio.Task[Result]) -> None:
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
