from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent import AgentResult, BatchAgent
from batch_agent.runtimes import CommandRuntime
from tests.clock import Clock
from tests.deadline import DEADLINE_S


class Review(BaseModel):
    bugs: int


async def run(
    program: str, directory: Path, *arguments: str, count: int = 2, **keywords: Any
) -> list[AgentResult]:
    """Workers that run Python code; `settings` are those of the runtime."""
    settings = keywords.pop("settings", {})
    command = [sys.executable, "-c", program, *arguments]
    runtime = CommandRuntime(
        command=command, working_dir=str(directory), gateway="http://127.0.0.1:9", model="m", **settings
    )
    given = {"task": "task {n}", "inputs": [{"n": n} for n in range(count)], "runtime": runtime} | keywords
    return await BatchAgent.run(**given)


async def test_the_output_of_a_program_is_its_answer(tmp_path: Path) -> None:
    results = await run("import sys; print(sys.stdin.read().upper())", tmp_path)
    assert [result.output for result in results] == ["TASK 0", "TASK 1"]


async def test_a_template_fills_words_and_variables(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.argv[1:], os.environ['PLACE'], os.environ['OPENAI_BASE_URL'])"
    (result,) = await run(
        program,
        tmp_path,
        *("{prompt}", "{model}", '{"json": "{session}"}', "{unknown}"),
        count=1,
        settings={"variables": {"PLACE": "at {base_url}"}},
        task="say {{model}}",
    )
    expected = ["say {model}", "m", f'{{"json": "{result.session}"}}', "{unknown}"]
    assert result.output == f"{expected} at http://127.0.0.1:9/v1 http://127.0.0.1:9/v1"


async def test_each_worker_has_a_copy_of_its_own_and_reports_its_changes(repository: Path) -> None:
    program = (
        "import os, sys; n = sys.stdin.read()[-1]; print(sorted(os.listdir('.')), open('a.py').read().strip());"
        "open('sub/b.py', 'a').write('b = ' + n); open('made-' + n, 'w').write('x'); os.remove('new.py')"
    )
    results = await run(program, repository)
    for result in results:
        assert result.output == "['.git', '.gitignore', 'a.py', 'new.py', 'sub'] a = 2"
        assert f"+b = {result.index}" in result.patch
        assert f"made-{result.index}" in result.patch
        assert "deleted file" in result.patch
    assert sorted(path.name for path in repository.iterdir()) == [
        ".git",
        ".gitignore",
        "a.py",
        "new.py",
        "secret",
        "sub",
    ]
    subprocess.run(["git", "apply", "--check"], cwd=repository, input=results[0].patch.encode(), check=True)


async def test_the_environment_names_the_copy_too(repository: Path) -> None:
    (result,) = await run("import os; print(os.getcwd() == os.environ['PWD'])", repository, count=1)
    assert result.output == "True"


async def test_copies_are_removed_unless_they_are_to_stay(repository: Path, tmp_path: Path) -> None:
    (gone,) = await run("import os; print(os.getcwd())", repository, count=1)
    assert not Path(gone.output).exists()
    (kept,) = await run(
        "open('made', 'w').write('x')", repository, count=1, settings={"keep_workspaces": str(tmp_path / "kept")}
    )
    assert (Path(kept.workspace) / "made").read_text() == "x"


async def test_workers_without_copies_work_in_the_directory_itself(repository: Path) -> None:
    (result,) = await run("import os; print(os.getcwd())", repository, count=1, settings={"isolated": False})
    assert (result.output, result.patch) == (str(repository), "")


async def test_a_directory_that_is_no_repository_is_copied_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (result,) = await run("import os; print(sorted(os.listdir('.')))", tmp_path, count=1)
    assert result.output == "['.git', 'a']"


async def test_a_structured_result_is_read_from_what_is_written(tmp_path: Path) -> None:
    program = "import sys; assert 'schema' in sys.stdin.read(); print('I found:', '{\"bugs\": 2,}')"
    (result,) = await run(program, tmp_path, count=1, output_schema=Review)
    assert result.output == Review(bugs=2)


@pytest.mark.parametrize(
    ("program", "error", "said"),
    [
        ("import sys; sys.exit('it broke')", "WorkerError", "it broke"),
        ("print('nothing')", "OutputValidationError", "no JSON object"),
    ],
)
async def test_a_worker_that_fails_is_a_result(tmp_path: Path, program: str, error: str, said: str) -> None:
    (result,) = await run(program, tmp_path, count=1, output_schema=Review)
    assert result.error is not None
    assert result.error.type == error
    assert said in result.error.message


async def test_a_failed_worker_reports_its_changes_too(tmp_path: Path) -> None:
    (result,) = await run("open('made', 'w').write('half'); raise SystemExit(1)", tmp_path, count=1)
    assert not result.ok
    assert "+half" in result.patch


async def test_a_program_that_does_not_exist_says_so(tmp_path: Path) -> None:
    runtime = CommandRuntime(
        command=["no-such-program"], gateway="http://127.0.0.1:9", model="m", working_dir=str(tmp_path)
    )
    with pytest.raises(ValueError, match="there is no program 'no-such-program' on PATH"):
        await BatchAgent.run(task="x", inputs=[{}] * 3, runtime=runtime)


async def test_a_program_of_the_working_copy_that_does_not_exist_is_an_error_of_each_agent(tmp_path: Path) -> None:
    runtime = CommandRuntime(
        command=["./made-later"], gateway="http://127.0.0.1:9", model="m", working_dir=str(tmp_path)
    )
    (result,) = await BatchAgent.run(task="x", inputs=[{}], runtime=runtime)
    assert result.error is not None
    assert "./made-later cannot be started" in result.error.message


CHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open('{place}/pids', 'a').write(str(child.pid) + chr(10))\n"
)


def are_gone(pids: list[int]) -> bool:
    def is_gone(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    return all(map(is_gone, pids))


async def until_children(place: Path, num: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not (place / "pids").exists() or (place / "pids").read_text().count("\n") < num:
            await asyncio.sleep(0.01)


async def until_gone(place: Path) -> None:
    pids = [int(line) for line in (place / "pids").read_text().split()]
    async with asyncio.timeout(DEADLINE_S):
        while not are_gone(pids):
            await asyncio.sleep(0.01)


async def test_a_worker_that_takes_too_long_is_ended_with_all_its_children(tmp_path: Path, clock: Clock) -> None:
    program = CHILD.replace("{place}", str(tmp_path)) + "time.sleep(600)"
    task = asyncio.ensure_future(run(program, tmp_path, timeout_per_agent=600))
    await until_children(tmp_path, 2)
    clock.advance(600)
    results = await task
    assert [result.error.type for result in results if result.error] == ["TimeoutError"] * 2
    await until_gone(tmp_path)


async def test_children_that_a_worker_leaves_are_ended_and_delay_no_result(tmp_path: Path) -> None:
    program = CHILD.replace("{place}", str(tmp_path)) + "print('done')"
    async with asyncio.timeout(DEADLINE_S):
        (result,) = await run(program, tmp_path, count=1)
    assert result.output == "done"
    await until_gone(tmp_path)


async def test_a_cancelled_batch_ends_its_workers(tmp_path: Path) -> None:
    program = CHILD.replace("{place}", str(tmp_path)) + "time.sleep(600)"
    task = asyncio.ensure_future(run(program, tmp_path))
    await until_children(tmp_path, 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until_gone(tmp_path)


async def test_processes_at_once_are_bounded(tmp_path: Path) -> None:
    program = (
        f"import os, time, pathlib; place = pathlib.Path({str(tmp_path)!r})\n"
        "running, begun = place / 'running', place / 'begun'\n"
        "for each in (running, begun): each.mkdir(exist_ok=True); (each / str(os.getpid())).touch()\n"
        "while len(os.listdir(begun)) < 2: time.sleep(0.01)\n"
        "print(len(os.listdir(running))); (running / str(os.getpid())).unlink()"
    )
    source = tmp_path / "source"
    source.mkdir()
    results = await run(program, source, count=6, max_agents=2)
    assert max(int(result.output) for result in results) == 2


async def test_workers_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    program = f"open({str(tmp_path / 'log')!r}, 'a').write('x'); open('made', 'w').write('y'); print('done')"
    for _ in range(2):
        results = await run(program, source, checkpoint_dir=tmp_path / "kept")
        assert [result.output for result in results] == ["done", "done"]
        assert all("+y" in result.patch for result in results)
    assert (tmp_path / "log").read_text() == "xx"


async def test_a_runtime_brings_its_own_tools(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tools="):
        await run("print()", tmp_path, tools=["read_file"])


async def test_anything_else_is_no_runtime() -> None:
    with pytest.raises(TypeError, match="OpenCodeRuntime"):
        await BatchAgent.run(task="x", inputs=[{}], runtime="opencode")
