from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from batch_agent import Tool, ToolError, tools
from batch_agent.tools import ToolDefinition, runtime_tools
from tests.batch_agent.conftest import Run
from tests.batch_agent.scripted import Scripted, calls, says
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect


@Tool.define(name="renamed", max_tokens=10, rate_limit=5, cache_key_func=lambda arguments: str(arguments["path"]))
async def shown(path: str, count: int = 5, tags: list[str] | None = None) -> str:
    """Shows a file.

    Args:
        path: which one
    """
    return path * count


async def called(tool: Any, arguments: str, timeout_s: float | None = None) -> str:
    tools, _ = runtime_tools([tool], timeout_s)
    runtime = ToolRuntime(tools, clock=asyncio.get_running_loop().time)
    try:
        return (await runtime.run(Call("c", tools[0].name, arguments), Context("t"))).text
    finally:
        await runtime.close()


def test_a_definition_is_found_by_name_and_holds_the_function() -> None:
    assert isinstance(shown, ToolDefinition)
    assert Tool.registry["renamed"] is shown is getattr(Tool, "renamed")  # noqa: B009 - as users write it
    assert (shown.name, shown.max_tokens, shown.cacheable, shown.rate_limit) == ("renamed", 10, True, 5)


def test_schema_and_description_come_from_the_function() -> None:
    ((tool,), _) = runtime_tools([shown], 30)
    assert tool.parameters["properties"]["path"]["type"] == "string"
    assert tool.parameters["required"] == ["path"]
    assert "Shows a file." in tool.description
    assert tool.key is not None
    assert tool.key({"path": "a"}) == "a"


@pytest.mark.parametrize(("cacheable", "effect"), [(True, Effect.READ_ONLY), (False, Effect.DESTRUCTIVE)])
def test_only_cacheable_tools_may_be_shared(cacheable: bool, effect: Effect) -> None:
    @Tool.define(cacheable=cacheable)
    async def once(path: str) -> str:
        return path

    ((tool,), _) = runtime_tools([once], None)
    assert tool.effect is effect
    assert (tool.limits.ttl_s > 0) is cacheable


async def test_a_long_result_is_cut_and_says_so() -> None:
    text = await called(shown, '{"path": "0123456789", "count": 9}')
    assert text.startswith("0123456789" * 4)
    assert "truncated" in text.lower()


async def test_results_that_are_no_text_become_json_and_blocking_functions_are_tools_too() -> None:
    @Tool.define
    def numbers(count: int) -> dict[str, list[int]]:
        return {"numbers": list(range(count))}

    assert await called(numbers, '{"count": 3}') == '{"numbers":[0,1,2]}'


async def test_a_tool_error_is_told_in_its_own_words() -> None:
    @Tool.define
    async def refuse(path: str) -> str:
        raise ToolError("not on Sundays")

    assert "not on Sundays" in await called(refuse, '{"path": "a"}')


async def test_calls_of_a_batchable_tool_become_one_call_of_its_handler() -> None:
    asked: list[list[str]] = []

    @Tool.batchable(key_arg="id", batch_query="SELECT * FROM t WHERE id IN ({ids})")
    async def row(id: str, column: str = "all") -> str:
        return f"alone {id} {column}"

    async def rows(keys: list[str]) -> list[Any]:
        asked.append(keys)
        return [ToolError(f"no {key}") if key == "9" else f"row {key}" for key in keys]

    row._batch_handler = rows  # type: ignore[attr-defined]
    tools, _ = runtime_tools([Tool.define(row)], 5)
    runtime = ToolRuntime(tools, clock=asyncio.get_running_loop().time)
    calls = ['{"id": "1"}', '{"id": "2"}', '{"id": "9"}', '{"id": "3", "column": "b"}', '{"id": "1"}']
    results = await asyncio.gather(*(runtime.run(Call("c", "row", text), Context("t")) for text in calls))
    await runtime.close()
    assert asked == [["1", "2", "9"]]
    assert [result.text for result in results[:2]] == ["row 1", "row 2"]
    assert "no 9" in results[2].text
    assert [result.text for result in results[3:]] == ["alone 3 b", "row 1"]


def test_names_of_built_in_tools_are_known() -> None:
    for name in ("read_file", "http_get", "web_search", "python_eval", "claude_code"):
        assert getattr(Tool, name) is Tool.registry[name]


async def test_calls_of_several_agents_become_one_also_where_each_has_to_run(
    gateway: Scripted, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_WINDOW_S", 0.5)  # a slow machine brings them together, too
    handled: list[list[str]] = []

    @Tool.define(cacheable=False)
    @Tool.batchable(key_arg="to", batch_query="")
    async def send(to: str) -> str:
        raise AssertionError("each call belongs to the group")

    async def send_all(keys: list[str]) -> list[str]:
        handled.append(sorted(keys))
        return [f"sent {key}" for key in keys]

    send._batch_handler = send_all
    gateway.script = lambda asked: (
        calls("send", f'{{"to": "{asked.messages[0]["content"]}"}}') if not asked.num_turns else says("done")
    )
    inputs = [{"n": name} for name in ("ann", "bob", "ann")]
    results = await run(task="{n}", inputs=inputs, tools=[send], max_turns=2, transcript=True)
    assert handled == [["ann", "ann", "bob"]]
    assert [result.transcript[2]["content"] for result in results if result.transcript] == [
        "sent ann",
        "sent bob",
        "sent ann",
    ]


@pytest.mark.parametrize("name", ["define", "batchable", "registry"])
def test_a_tool_can_have_the_name_of_what_makes_tools(name: str) -> None:
    known = getattr(Tool, name)
    made = Tool.define(name=name)(called)
    assert Tool.registry.pop(name) is made
    assert getattr(Tool, name) == known


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools are called renamed"):
        runtime_tools([shown, "renamed"], None)


def test_a_bare_function_is_no_tool() -> None:
    with pytest.raises(TypeError, match=r"Tool\.define"):
        runtime_tools([called], None)


def test_a_built_in_tool_that_lacks_its_key_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("BRAVE_SEARCH_API_KEY", "TAVILY_API_KEY", "SEARXNG_URL"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level(logging.WARNING):
        assert runtime_tools([Tool.web_search], None) == ([], [])
    assert "BRAVE_SEARCH_API_KEY" in caplog.text
    monkeypatch.setenv("SEARXNG_URL", "http://127.0.0.1:1")
    assert [tool.name for tool in runtime_tools(["web_search"], None)[0]] == ["web_search"]


@pytest.mark.parametrize("path", ["a/b.txt", "./a/b.txt", "{here}/a/b.txt"])
async def test_read_file_reads_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    asked = path.replace("{here}", str(Path.cwd()))
    assert await called(Tool.read_file, f'{{"path": "{asked}"}}') == "text"


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "a/../../secret"])
async def test_read_file_reads_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    text = await called(Tool.read_file, f'{{"path": "{path}"}}')
    assert text.startswith("Error")
    assert "s3cret" not in text
    assert "root:" not in text
