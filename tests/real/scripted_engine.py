"""An engine without a model: what it answers is a script, in the dialect that it is asked in."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.path.fake_engine import Call as Asked
from tests.path.fake_engine import FakeEngine, Play, error
from tests.path.tool_dialects import speaks
from tests.path.toolkit import Says, says
from tests.real.scripts import Script, num_turns

CONTEXT_TOKENS = 262_144
"""Room for what any agent reserves for an answer."""


def scripted(script: Script, thinks_s: float = 0) -> Play:
    """Call ids are those of engines that number them, equal in each run of the same task; answers have ids of
    their own."""
    numbers = itertools.count(1)

    async def play(asked: Asked) -> web.StreamResponse | None:
        turn = num_turns(asked.body)
        try:
            answer = script(asked.body, turn)
        except LookupError as failure:
            return await asked.reply(400, error(f"the script: {failure}", 400))
        calls = tuple(
            (f"functions.{call.name}:{turn}{index}", call.name, json.dumps(call.arguments))
            for index, call in enumerate(answer.calls)
        )
        said = Says(answer.text, calls, id=f"scripted-{next(numbers)}")
        await asyncio.sleep(thinks_s)
        return await (says(said) if "/chat/" in asked.path else speaks(said))(asked)

    return play


@asynccontextmanager
async def scripted_engine(script: Script, thinks_s: float = 0) -> AsyncIterator[FakeEngine]:
    """It looks like a vLLM, says nothing for `thinks_s`, and keeps what it was asked in `calls`."""
    engine = FakeEngine(max_model_len=CONTEXT_TOKENS, otherwise=scripted(script, thinks_s))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
