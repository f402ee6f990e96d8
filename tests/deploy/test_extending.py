"""The examples of docs/extending.md, each run in a copy of the tree."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.deadline import DEADLINE_S

ROOT = Path(__file__).parents[2]
COPIED = ("gateway", "policies", "tool_runtime", "tests/contract", "tests/policies", "benchmarks/simulation")
EXTENSIONS = (
    *("A tool", "An engine", "A provider", "A policy", "A wire format"),
    *("A command", "A key of the configuration", "An endpoint"),
)
MODEL = {"object": "list", "data": [{"id": "small", "object": "model"}]}
QUESTION = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}


@dataclass(frozen=True)
class Block:
    """One block of code: a file to write, a change of one, or commands with what they print."""

    language: str
    path: str
    text: str


def blocks_of(extension: str) -> list[Block]:
    document = (ROOT / "docs/extending.md").read_text()
    section = document.split(f"\n## {extension}\n")[1].split("\n## ")[0]
    return [Block(*found) for found in re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", section, re.M | re.S)]


def added_lines(block: Block) -> list[str]:
    return [line[1:] for line in block.text.splitlines() if line.startswith("+")]


def apply(block: Block, tree: Path) -> None:
    """Add the lines of a `diff` after the lines that it shows of the file."""
    path, lines = tree / block.path, block.text.splitlines()
    before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
    after = "".join(f"{line[1:]}\n" for line in lines)
    text = path.read_text()
    assert text.count(before) == 1, f"{block.path} has changed: {before}"
    path.write_text(text.replace(before, after))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with all extensions of the document."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for file in ("pyproject.toml", *map(str, (ROOT / "tests").glob("*.py")), "benchmarks/__init__.py"):
        shutil.copy(ROOT / file, tree / (ROOT / file).relative_to(ROOT))
    for block in (block for extension in EXTENSIONS for block in blocks_of(extension)):
        if block.language == "python":
            (tree / block.path).write_text(block.text)
        elif block.language == "diff":
            apply(block, tree)
    return tree


def environment(tree: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), **more}


def ran(tree: Path, module: str, *arguments: str) -> str:
    """What a module prints, without its errors."""
    command = (sys.executable, "-m", module, *arguments)
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@asynccontextmanager
async def served(tree: Path, *arguments: str, **variables: str) -> AsyncIterator[str]:
    """The address of a gateway that runs in the tree."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--port", "0", *arguments),
        cwd=tree,
        env=environment(tree, **variables),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while b"OPENAI_BASE_URL" not in (line := await process.stdout.readline()):
                assert line, "the gateway has ended"
        found = re.search(rb"http://[\d.]+:\d+", line)
        assert found is not None
        yield found[0].decode()
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def engine(*routes: web.RouteDef) -> AsyncIterator[str]:
    """Host and port of a server."""
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def page(value: Any) -> Any:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(value)

    return answer


async def completion(request: web.Request) -> web.Response:
    message = {"role": "assistant", "content": f"{request.path} {request.headers.get('api-key', '')}".strip()}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return web.json_response({"id": "1", "object": "chat.completion", "model": "small", "choices": [choice]})


async def answer_of(url: str) -> str:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=QUESTION) as reply:
        assert reply.status == 200, await reply.text()
        return str((await reply.json())["choices"][0]["message"]["content"])


def console_commands() -> Iterator[tuple[str, str]]:
    """Commands of the document that end, with what they print."""
    for extension in EXTENSIONS:
        for block in blocks_of(extension):
            if block.language == "console":
                for command, printed in re.findall(r"^\$ turngate (.*)\n((?:[^$].*\n)*)", block.text, re.M):
                    if not command.startswith("serve"):
                        yield command, printed


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_an_extension_is_one_file_and_at_most_one_line(extension: str) -> None:
    """The help of a key is no line of its own, and the method of an endpoint is in place of a file."""
    blocks = blocks_of(extension)
    changes = [added_lines(block) for block in blocks if block.language == "diff"]
    if extension == "An endpoint":
        del changes[0]
    assert len([block for block in blocks if block.language == "python"]) <= 1
    assert sum(not line.lstrip().startswith('"""') for lines in changes for line in lines) <= 1


@pytest.mark.parametrize(("command", "printed"), list(console_commands()))
def test_a_command_of_the_document_prints_what_the_document_says(tree: Path, command: str, printed: str) -> None:
    assert fnmatchcase(f"\n{ran(tree, 'gateway', *shlex.split(command))}", f"\n{printed}".replace("...", "*"))


async def test_the_engine_is_polled_and_answers(tree: Path) -> None:
    pages = {"/v1/models": MODEL, "/props": {"total_slots": 3}}
    routes = [web.get(path, page(value)) for path, value in pages.items()]
    async with (
        engine(*routes, web.post("/v1/chat/completions", completion)) as address,
        served(tree, "--engine", f"llamacpp://{address}", "--set", "probing.hints=false") as url,
        aiohttp.ClientSession() as http,
    ):
        assert await answer_of(url) == "/v1/chat/completions"
        async with http.get(f"{url}/health") as reply:
            [seen] = (await reply.json())["engines"]
        assert (seen["kind"], seen["pools"][0]["slots"]) == ("llamacpp", 3)


async def test_the_provider_is_called_in_its_own_way(tree: Path) -> None:
    routes = web.get("/openai/v1/models", page(MODEL)), web.post("/openai/v1/chat/completions", completion)
    async with engine(*routes) as address:
        entry = f'[{{"url": "azure+http://{address}", "api_key": "env:AZURE_KEY"}}]'
        async with served(tree, "--set", f"engines={entry}", AZURE_KEY="secret") as url:
            assert await answer_of(url) == "/openai/v1/chat/completions secret"


def test_the_policy_passes_the_contract_suite(tree: Path) -> None:
    printed = ran(tree, "pytest", "tests/contract/test_policies.py", "-k", "shortest", "-p", "no:cacheprovider")
    assert " passed" in printed
    assert "failed" not in printed


async def test_the_policy_and_the_endpoint_serve(tree: Path) -> None:
    routes = web.get("/v1/models", page(MODEL)), web.post("/v1/chat/completions", completion)
    settings = ("--set", "policy.name=shortest", "--set", "models.notice=Maintenance")
    async with (
        engine(*routes) as address,
        served(tree, "--engine", f"openai://{address}", *settings) as url,
        aiohttp.ClientSession() as http,
    ):
        assert await answer_of(url) == "/v1/chat/completions"
        async with http.get(f"{url}/v1/turngate/notice") as reply:
            assert await reply.json() == {"notice": "Maintenance"}
        async with http.post(f"{url}/v1/turngate/notice") as reply:
            assert (reply.status, reply.headers["Allow"]) == (405, "GET")
        async with http.get(f"{url}/openapi.json") as reply:
            assert "get" in (await reply.json())["paths"]["/v1/turngate/notice"]


async def test_the_wire_format_is_checked_relayed_and_described(tree: Path) -> None:
    ranked = {"results": [{"index": 0, "relevance_score": 0.9}]}
    routes = web.get("/v1/models", page(MODEL)), web.post("/v1/rerank", page(ranked))
    async with (
        engine(*routes) as address,
        served(tree, "--engine", f"openai://{address}") as url,
        aiohttp.ClientSession() as http,
    ):
        question = {"model": "small", "query": "fruit", "documents": ["apple", "car"]}
        async with http.post(f"{url}/v1/rerank", json=question) as reply:
            assert (reply.status, await reply.json()) == (200, ranked)
        async with http.post(f"{url}/v1/rerank", json=question | {"query": None}) as reply:
            assert (reply.status, "`query` is missing" in await reply.text()) == (400, True)
        async with http.get(f"{url}/openapi.json") as reply:
            assert "post" in (await reply.json())["paths"]["/v1/rerank"]


async def test_extensions_outside_the_tree_are_named_by_their_import_paths(tree: Path) -> None:
    for module, extension in {"my_engines": "An engine", "my_policies": "A policy", "my_tools": "A tool"}.items():
        [text] = [block.text for block in blocks_of(extension) if block.language == "python"]
        (tree / f"{module}.py").write_text(text)
    tools = 'tools.use=[{"use": "my_tools:build", "options": {"separator": ","}}]'
    assert ran(tree, "gateway", "tools", "call", "count_words", '{"text": "a,b,c"}', "--set", tools) == "3\n"
    pages = {"/v1/models": MODEL, "/props": {"total_slots": 3}}
    routes = [web.get(path, page(value)) for path, value in pages.items()]
    policy = ("--set", "policy.name=my_policies:ShortestPrompt")
    async with (
        engine(*routes, web.post("/v1/chat/completions", completion)) as address,
        served(tree, "--engine", f"my_engines:LlamaCpp://{address}", *policy) as url,
    ):
        assert await answer_of(url) == "/v1/chat/completions"
