"""Every command of README.md and docs/ runs on the embedded engine, or is one of the omissions with a reason.

Engines of other kinds are replaced by the embedded one, which speaks as vLLM does.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import openai
import pytest
import yaml

from gateway.telemetry.factlog import FactLog
from policies.types import Arrived, Ending, Left, Usage
from tests.policies.turns_of import turn

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
OWN_SUITES = ("extending.md",)
"""Documents whose commands another test runs: test_extending.py."""
BIN = Path(sys.executable).parent
PROGRAMS = (
    *("turngate", "batch-agent", "python", "python3", "pip", "make", "curl", "git", "docker", "helm", "vllm"),
    *("opencode", "codex", "claude", "qwen", "mini", "aider", "systemctl"),
)
WITHIN_S = 60.0


@dataclass(frozen=True)
class Omission:
    pattern: str
    reason: str


OMISSIONS = (
    Omission(r"vllm serve|sglang\.launch_server|dynamo\.(frontend|vllm)", "needs a GPU host"),
    Omission(r"^(docker|helm) ", "needs containers or a cluster"),
    Omission(r"^systemctl ", "needs systemd"),
    Omission(r"^git clone |^make lock$", "needs the network"),
    Omission(r"^git apply$|^batch-agent run$", "names a command without what it is run on"),
    Omission(r"^(\S*bin/)?(pip|python3? -m venv)\b", "installs packages; test_packaging.py builds the wheel"),
    Omission(r"openai://|anthropic://|bedrock://", "needs a rented model; tests/engines/providers stand in"),
    Omission(r"^make (test|check|test-real)\b", "runs this test"),
    Omission(
        r"^make demo$|^turngate demo\b", "takes up to three minutes; test_demo_workloads.py plays each, small"
    ),
    Omission(r"^python -m tests\.real\.install ", "downloads several GB; make test-real"),
    Omission(r"^python -m benchmarks\.", "a benchmark, of minutes to hours; that the module exists is checked"),
    Omission(r"^python -m tests\.", "writes a document; the document's own test compares it"),
    Omission(r"\b(opencode run|codex exec|claude -p|qwen --auth)", "a real client: tests/real/test_embedded.py"),
    Omission(r"\b(mini -m|aider --model)", "a real client: tests/real/test_reruns.py"),
)


@dataclass(frozen=True)
class Documented:
    document: str
    text: str

    @property
    def omission(self) -> Omission | None:
        return next((one for one in OMISSIONS if re.search(one.pattern, self.text)), None)


def blocks(text: str) -> Iterator[str]:
    """Indented blocks, and fenced ones in a shell's language."""
    fences = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    yield from (fence[2] for fence in fences.finditer(text) if fence[1] in ("sh", "bash", "console"))
    for block in re.findall(r"(?:^    .*\n)+", fences.sub("", text), re.MULTILINE):
        yield textwrap.dedent(block)


def in_line(text: str) -> Iterator[str]:
    """Commands between back-ticks, which may go over a line's end."""
    prose = re.sub(
        r"^    .*$", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE
    )
    return (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))


def program(line: str) -> str:
    """The program of a line of shell, behind its variables."""
    words = re.sub(r"^(\w+=\S*\s+)+", "", line).split(maxsplit=1)
    return words[0].removeprefix(".venv/bin/") if words else ""


def documented() -> list[Documented]:
    """Return the distinct commands, each with the first document that has it."""
    found: dict[str, str] = {}
    for path in DOCUMENTS:
        if path.name in OWN_SUITES:
            continue
        text = path.read_text(encoding="utf-8")
        for block in blocks(text):
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                found = {part: path.name for part in parts_of(line) if program(part) in PROGRAMS} | found
        for span in in_line(text):
            if " " in span:
                found = {part: path.name for part in parts_of(span) if program(part) in PROGRAMS} | found
    return [Documented(document, text) for text, document in found.items()]


def parts_of(line: str) -> list[str]:
    """The commands of one line, without its comment."""
    line = re.sub(r"\s+#.*$|^\$ ", "", line)
    return [part.strip().replace(".venv/bin/", "") for part in line.split(" && ")]


COMMANDS = documented()
RUN = [command for command in COMMANDS if command.omission is None]


# ---- the place where they run

MY_TOOLS = '''
def search(q: str) -> str:
    """Search.

    Args:
        q: words
    """
    return f"nothing about {q}"
'''
REVIEWS = {
    "task": "Review this file: {file}",
    "inputs": [{"file": "a.py"}, {"file": "b.py"}],
    "output_schema": {"type": "object", "properties": {"bugs": {"type": "array", "items": {"type": "string"}}}},
}


@dataclass(frozen=True)
class Place:
    folder: Path
    gateway: str
    """`http://host:port`."""
    engine: str
    """`host:port`."""

    def adapted(self, text: str) -> str:
        """The command with the addresses and files of this place. Nothing else of it changes."""
        other_name = self.engine.replace("127.0.0.1", "localhost")
        text = text.replace("vllm://gpu2:8000", f"vllm://{other_name}")
        text = re.sub(r"(vllm|sglang|dynamo)://(?!localhost)[\w.]+:\d+", f"vllm://{self.engine}", text)
        text = re.sub(r"\bURL\b(?=$| )", f"vllm://{self.engine}" if "--engine" in text else self.gateway, text)
        text = text.replace("http://127.0.0.1:8080", self.gateway)
        text = text.replace("/var/lib/turngate", str(self.folder / "kept")).replace("FILE", "hosts.txt")
        text = text.replace("serve ...", "serve --engine embedded")
        if re.match(r"turngate (top|batches|why)\b", text) and "--gateway" not in text:
            text += f" --gateway {self.gateway}"
        if text.startswith("turngate top"):
            text += " --once"
        if text.startswith("turngate bench"):
            text += " --repeats 1" + (" --facts facts.jsonl" if "--facts" not in text else "")
        if re.match(r"turngate (serve|engine)\b", text):
            text = re.sub(r" --port \d+", "", text) + " --port 0"
        return text

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("TURNGATE_", "OPENAI_"))}
        address = {"OPENAI_BASE_URL": f"{self.gateway}/v1", "OPENAI_API_KEY": "any", "PYTHONPATH": str(ROOT)}
        return kept | address | {"PATH": f"{BIN}:{os.environ['PATH']}"}


READY = re.compile(r"(?:OPENAI_BASE_URL=http|--engine vllm)://([\w.]+:\d+)")


@contextmanager
def server(command: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a server until it prints its address, and to the end of the block; it has to stop with status 0."""
    with (folder / "log.txt").open("w+b") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )

        def said() -> str:
            return (folder / "log.txt").read_text(errors="replace")

        try:
            deadline = time.monotonic() + WITHIN_S
            while (found := READY.search(said())) is None:
                assert process.poll() is None, f"{command} stopped: {said()}"
                assert time.monotonic() < deadline, f"{command} is not ready: {said()}"
                time.sleep(0.05)
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert status == 0, said()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("commands")
    embedded = (ROOT / "docs/embedded.md").read_text()
    (folder / "rules.yaml").write_text(fences(embedded, "yaml")[0])
    (folder / "my_tools.py").write_text(MY_TOOLS)
    (folder / "key.txt").write_text("sk-test\n")
    log_facts(folder / "facts.jsonl")
    environment = Place(folder, "http://127.0.0.1:1", "127.0.0.1:1").environment
    servers = folder / "servers"
    servers.mkdir()
    with server("turngate engine --port 0", servers, environment) as engine:
        (folder / "hosts.txt").write_text(f"vllm://{engine}\n")
        tools = {"use": [{"use": "my_tools:search", "effect": "read_only"}]}
        config = {"engines": [f"vllm://{engine}"], "tools": tools}
        (folder / "turngate.yaml").write_text(yaml.safe_dump(config))
        serve = "turngate serve --config ../turngate.yaml --batches ../batches --port 0"
        serving = folder / "serving"
        serving.mkdir()
        with server(serve, serving, environment) as gateway:
            for name in ("reviews.yaml", "batch.yaml"):
                (folder / name).write_text(yaml.safe_dump({**REVIEWS, "gateway": f"http://{gateway}"}))
            for agent in ("NAME", "worker-11"):
                ask(f"http://{gateway}", agent)
            yield Place(folder, f"http://{gateway}", engine)


def log_facts(file: Path) -> None:
    """A log of two short sessions, which `turngate bench` plays."""
    log = FactLog(file)
    for number in range(2):
        log.record(float(number), Arrived(turn(f"t{number}", at=float(number))), [])
        log.record(number + 0.5, Left(f"t{number}", Ending.COMPLETE, Usage(100, 0, 5)), [])
    log.close()


def ask(gateway: str, agent: str) -> None:
    """One turn of an agent, which `turngate why` explains."""
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="any") as client:
        client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": f"I am {agent}."}],
            extra_headers={"X-Turngate-Agent": agent},
        )


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# ---- the laws


@pytest.mark.parametrize("command", RUN, ids=lambda command: f"{command.document}: {command.text}"[:90])
def test_a_documented_command_runs(command: Documented, place: Place, tmp_path: Path) -> None:
    text = place.adapted(command.text)
    folder = tmp_path / "run"
    shutil.copytree(place.folder, folder, ignore=shutil.ignore_patterns("servers", "serving", "batches"))
    if "--hosts" in text:
        (folder / "turngate.yaml").unlink()  # it lists the same engine
    if re.match(r"turngate (serve|engine)\b", text) and "--dump-config" not in text:
        with server(text, folder, place.environment):
            return
    if program(text) == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    if program(text) == "curl":
        assert "200 OK" in done.stdout
        assert '"finish_reason":"' in done.stdout


def test_every_omission_is_needed_and_no_fewer_commands_run_than_before() -> None:
    reasons = {command.omission for command in COMMANDS}
    assert [one for one in OMISSIONS if one not in reasons] == []
    assert len(RUN) >= 30


def test_benchmarks_that_documents_name_exist() -> None:
    modules = {found[1] for command in COMMANDS if (found := re.match(r"python -m (\S+)", command.text))}
    ours = {name for name in modules if name.startswith(("benchmarks", "tests"))}
    assert len(ours) > 3
    assert {name for name in ours if find_spec(name) is None} == set()


# ---- the examples in Python


async def run_python(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block that may use `await`, and return its names."""
    code = compile(source, "example", "exec", flags=_TOP_LEVEL_AWAIT)
    if (running := eval(code, names)) is not None:
        await cast(Any, running)
    return names


_TOP_LEVEL_AWAIT = 0x2000
"""`ast.PyCF_ALLOW_TOP_LEVEL_AWAIT`."""


async def test_the_first_example_of_batch_agent_gives_a_result_for_each_input(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    source = fences((ROOT / "docs/batch-agent.md").read_text(), "python")[0]
    names = await run_python(source.replace("http://127.0.0.1:8080", place.gateway), {"__name__": "example"})
    assert [type(result.output).__name__ for result in names["results"]] == ["Review", "Review"]


async def test_the_lists_of_prompts_of_batch_agent_are_answered(place: Place) -> None:
    source = fences((ROOT / "docs/batch-agent.md").read_text(), "python")[-1]
    texts = [f"Text {number}." for number in range(9)]
    source = source.replace("gateway=...", f"gateway={place.gateway!r}")
    names = await run_python(source, {"prompts": texts, "texts": texts})
    assert [result.ok for result in names["results"]] == [True] * 9
    assert names["summary"]


async def test_the_examples_of_batches_are_taken(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/batches.md").read_text()
    first, second = fences(text, "python")
    (place.folder / "lines.jsonl").write_text(
        '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",'
        ' "body": {"model": "embedded", "messages": [{"role": "user", "content": "Hello"}]}}\n'
    )
    monkeypatch.chdir(place.folder)
    first = first.replace("http://127.0.0.1:8080", place.gateway)
    names: dict[str, Any] = {"openai": openai, "Path": Path, "ten_thousand_texts": ["a", "b", "c"]}
    await asyncio.to_thread(exec, first + second.replace('model="m"', 'model="embedded"'), names)
    client, batch = names["client"], names["batch"]
    deadline = time.monotonic() + WITHIN_S
    while (now := await asyncio.to_thread(client.batches.retrieve, batch.id)).status != "completed":
        assert time.monotonic() < deadline, now
        await asyncio.sleep(0.1)
    assert now.request_counts.completed == 1
