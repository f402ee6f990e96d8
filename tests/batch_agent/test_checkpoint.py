from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, Field

from batch_agent import AgentResult, Tool
from batch_agent.checkpoint import FILE, Checkpoint
from tests.batch_agent.conftest import Run
from tests.batch_agent.scripted import Asked, Scripted, calls, refusal, says
from tool_runtime.agent_loop import Step


class Found(BaseModel):
    path: str


sent: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@Tool.define(cacheable=False)
async def send(path: str) -> str:
    sent.append(path)
    return "sent"


@Tool.define
async def look(path: str) -> str:
    sent.append(path)
    return "seen"


async def test_an_agent_that_is_done_does_not_run_again(gateway: Scripted, run: Run, tmp_path: Path) -> None:
    gateway.script = lambda asked: says(f'{{"path": "{asked.task}"}}')
    again = {
        "task": "{n}",
        "inputs": [{"n": n} for n in range(3)],
        "output_schema": Found,
        "checkpoint_dir": tmp_path,
    }
    first, second = await run(**again), await run(**again)
    assert [result.output for result in second] == [result.output for result in first]
    assert isinstance(second[0].output, Found)
    assert [(result.attempts, result.turns) for result in second] == [(0, 1)] * 3
    assert len(gateway.asked) == 3
    for name in ("usage", "timings", "finish_reason", "session", "receipt", "tool_calls"):
        assert [getattr(result, name) for result in second] == [getattr(result, name) for result in first], name
    assert all(result.usage.prompt_tokens and result.timings.model_s and result.session for result in second)


async def test_an_agent_that_an_older_version_has_kept_has_the_figures_of_its_steps(
    gateway: Scripted, run: Run, tmp_path: Path
) -> None:
    gateway.script = lambda asked: says("x")
    (first,) = await run(checkpoint_dir=tmp_path)
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("DELETE FROM figures")
    database.close()
    (second,) = await run(checkpoint_dir=tmp_path)
    assert (second.turns, second.usage, second.session) == (1, first.usage, "")


@pytest.mark.parametrize(
    "change",
    [{"task": "other"}, {"system_prompt": "s"}, {"model": "n"}, {"sampling": {"seed": 1}}, {"tools": [look]}],
)
async def test_another_batch_in_the_same_place_gets_its_own_answers(
    gateway: Scripted, run: Run, tmp_path: Path, change: dict[str, Any]
) -> None:
    gateway.script = lambda asked: says(str(asked.number))
    await run(checkpoint_dir=tmp_path)
    (result,) = await run(**{"checkpoint_dir": tmp_path, **change})
    assert result.output == "1"


async def test_equal_inputs_are_agents_of_their_own(gateway: Scripted, run: Run, tmp_path: Path) -> None:
    gateway.script = lambda asked: says(str(asked.number))
    first = await run(inputs=[{}] * 3, checkpoint_dir=tmp_path)
    second = await run(inputs=[{}] * 3, checkpoint_dir=tmp_path)
    assert (
        sorted(result.output for result in second) == sorted(result.output for result in first) == ["0", "1", "2"]
    )


async def test_failures_are_tried_again(gateway: Scripted, run: Run, tmp_path: Path) -> None:
    gateway.script = lambda asked: refusal(400, "no") if asked.number == 0 else says("yes")
    (failed,) = await run(checkpoint_dir=tmp_path)
    (result,) = await run(checkpoint_dir=tmp_path)
    assert not failed.ok
    assert result.output == "yes"


async def test_an_agent_goes_on_after_its_last_finished_turn(gateway: Scripted, run: Run, tmp_path: Path) -> None:
    def breaking(asked: Asked) -> Any:
        return calls("send", '{"path": "a"}') if asked.num_turns < 2 else refusal(400, "engine lost")

    gateway.script = breaking
    (failed,) = await run(tools=[send], max_turns=4, checkpoint_dir=tmp_path)
    gateway.script = lambda asked: says("done")
    (result,) = await run(tools=[send], max_turns=4, checkpoint_dir=tmp_path)
    assert (failed.turns, result.turns, result.output) == (2, 3, "done")
    assert gateway.asked[3].messages == gateway.asked[2].messages
    assert gateway.asked[3].headers["X-Turngate-Session"] == gateway.asked[0].headers["X-Turngate-Session"]
    assert sent == ["a", "a"]


async def test_an_agent_whose_model_led_nowhere_starts_over(gateway: Scripted, run: Run, tmp_path: Path) -> None:
    gateway.script = lambda asked: calls("look", '{"path": "a"}')
    (failed,) = await run(tools=[look], max_turns=2, checkpoint_dir=tmp_path)
    gateway.script = lambda asked: says("done")
    (result,) = await run(tools=[look], max_turns=2, checkpoint_dir=tmp_path)
    assert failed.error is not None
    assert failed.error.type == "MaxTurnsError"
    assert (result.output, result.turns) == ("done", 1)


@pytest.mark.parametrize(("tool", "runs"), [(send, 1), (look, 2)])
async def test_a_call_in_flight_is_repeated_only_where_that_is_harmless(
    gateway: Scripted, run: Run, tmp_path: Path, tool: Any, runs: int
) -> None:
    began = asyncio.Event()

    @Tool.define(name=tool.name, cacheable=tool.cacheable)
    async def stalled(path: str) -> str:
        await tool.func(path)
        began.set()
        await asyncio.Event().wait()
        return ""

    gateway.script = lambda asked: (
        says(asked.last["content"]) if asked.num_turns else calls(tool.name, '{"path": "a"}')
    )
    task = asyncio.ensure_future(run(tools=[stalled], max_turns=2, checkpoint_dir=tmp_path))
    await began.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (result,) = await run(tools=[tool], max_turns=2, checkpoint_dir=tmp_path)
    assert len(sent) == runs
    assert ("unknown" in result.output) is (tool is send)
    assert len(gateway.asked) == 2


async def test_an_answer_that_was_read_last_is_not_asked_for_again(
    gateway: Scripted, run: Run, tmp_path: Path
) -> None:
    stall = asyncio.Event()

    async def script(asked: Asked) -> Any:
        if asked.num_turns:
            await stall.wait()
            return says('{"path": "corrected"}')
        return says("wrong")

    gateway.script = script
    task = asyncio.ensure_future(run(output_schema=Found, checkpoint_dir=tmp_path))
    await gateway.until(lambda: len(gateway.asked) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    stall.set()
    (result,) = await run(output_schema=Found, checkpoint_dir=tmp_path)
    assert result.output == Found(path="corrected")
    assert gateway.asked[2].messages == gateway.asked[1].messages


SCRIPT = """
import asyncio, sys
from batch_agent import BatchAgent, Tool

@Tool.define
async def look(path: str) -> str:
    return "seen"

async def main():
    results = await BatchAgent.run(
        task="agent {n}", inputs=[{"n": n} for n in range(20)], tools=[look], max_turns=4, model="m",
        gateway=sys.argv[1], checkpoint_dir=sys.argv[2], max_dispatched=4,
    )
    print(sorted(result.output for result in results))

asyncio.run(main())
"""


async def test_a_batch_that_was_killed_goes_on_without_a_lost_turn(gateway: Scripted, tmp_path: Path) -> None:
    """Killed at several points of its life: each turn of each agent is answered once, but for those that were on
    their way at a kill."""

    async def play() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SCRIPT, gateway.url, str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )

    def has_asked(count: int) -> bool:
        return len(gateway.asked) >= count

    gateway.script = lambda asked: says(asked.task) if asked.num_turns == 3 else calls("look", '{"path": "a"}')
    for point in (5, 30, 55):
        process = await play()
        await gateway.until(partial(has_asked, point))
        process.send_signal(signal.SIGKILL)
        await process.communicate()
    process = await play()
    seen, _ = await process.communicate()
    assert seen.decode().strip() == str(sorted(f"agent {n}" for n in range(20)))
    turns = [(asked.task, asked.num_turns) for asked in gateway.asked]
    assert len(set(turns)) == 80
    assert len(turns) <= 80 + 3 * 4


class Renamed(BaseModel):
    file_path: str = Field(alias="path")


async def test_an_output_that_its_schema_does_not_read_back_is_read_from_the_answer(
    gateway: Scripted, run: Run, tmp_path: Path
) -> None:
    gateway.script = lambda asked: says('{"path": "a"}')
    again = {"output_schema": Renamed, "checkpoint_dir": tmp_path}
    first, second = await run(**again), await run(**again)
    assert second[0].output == first[0].output == Renamed(path="a")
    assert len(gateway.asked) == 1


async def test_a_resumed_agent_knows_how_long_its_prompt_was(gateway: Scripted, run: Run, tmp_path: Path) -> None:
    """Or `compact` would let the first call after a restart be too long."""
    gateway.script = lambda asked: refusal(400, "down") if asked.num_turns else calls("look", '{"path": "a"}')
    seen: list[int] = []
    again = {
        "tools": [look],
        "max_turns": 2,
        "checkpoint_dir": tmp_path,
        "compact": lambda messages, tokens: seen.append(tokens),
    }
    await run(**again)
    await run(**again)
    assert seen == [10, 10]


async def test_rows_of_an_older_version_with_several_messages_are_read(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    await checkpoint.open()
    with sqlite3.connect(tmp_path / "turns.sqlite") as database:
        for number, (size, usage) in enumerate(((1, b'{"prompt_tokens":7}'), (2, None), (1, b"{}"))):
            messages = orjson.dumps([{"content": f"{number}.{n}"} for n in range(size)])
            row = (b"a", number, messages, usage)
            database.execute("INSERT INTO steps VALUES (?, ?, ?, ?)", row)
    await checkpoint.keep(b"a", 5, Step({"content": "behind a gap"}))
    steps = (await checkpoint.load(b"a")).steps
    await checkpoint.close()
    assert {position: step.message["content"] for position, step in steps.items()} == {
        0: "0.0",
        1: "1.0",
        2: "1.1",
        3: "2.0",
        5: "behind a gap",
    }
    assert [position for position, step in steps.items() if step.usage is not None] == [0, 3]


async def test_a_write_without_a_waiter_is_on_disk_before_the_end(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    await checkpoint.open()
    write = asyncio.ensure_future(checkpoint.finish(b"a", AgentResult("job-0", 0, "x")))
    await asyncio.sleep(0)
    write.cancel()
    await checkpoint.close()
    again = Checkpoint(tmp_path)
    await again.open()
    assert (await again.load(b"a")).output == "x"
    await again.close()


@pytest.mark.parametrize("is_directory", [True, False])
async def test_a_place_that_cannot_be_used_is_named(run: Run, tmp_path: Path, is_directory: bool) -> None:
    place = tmp_path / "place"
    if is_directory:
        place.mkdir()
    (place / "turns.sqlite" if is_directory else place).write_bytes(b"no database" * 100)
    with pytest.raises(OSError, match="place"):
        await run(checkpoint_dir=place)
