"""The examples that batch-agent 0.2.0 was published with, on a real vLLM: only model and backend are changed.

user's code -> gateway in its process -> shim that scripts -> vLLM
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from batch_agent import BatchAgent, Tool, scatter_gather
from batch_agent.runtimes import OpenCodeRuntime
from tests.real.gateway import engine_url, gateway
from tests.real.parts import OPENCODE_COMMAND, ORIGINAL_DIR, RIPGREP_BIN_DIR, require
from tests.real.rewrites import scripted
from tests.real.scripts import Answer, Body, Call
from tests.real.shim import Request, Rewrite, Shim, shim
from tests.real.vllm import Vllm

PAPERS = {"attention.txt": "Attention is all that this paper needs.", "caches.txt": "Caches, and what they cost."}


class PaperSummary(BaseModel):
    title: str
    contribution: str
    relevance: str


class ResearchPlan(BaseModel):
    items: list[str]
    scope: str


class ResearchAnswer(BaseModel):
    question: str
    answer: str
    key_findings: list[str]
    sources_consulted: list[str]


class SurveyPaper(BaseModel):
    title: str
    abstract: str
    sections: list[dict[str, Any]]
    conclusions: str
    open_questions: list[str]


SUMMARY = {"title": "Caches", "contribution": "a measurement", "relevance": "high"}
PLAN: dict[str, Any] = {"items": ["What is cached?", "What is evicted?"], "scope": "caches"}
ANSWER: dict[str, Any] = {
    "question": "What is cached?",
    "answer": "Blocks.",
    "key_findings": ["16"],
    "sources_consulted": ["notes"],
}
SURVEY: dict[str, Any] = {
    "title": "A Survey of Caches",
    "abstract": "They help.",
    "sections": [{"heading": "Blocks", "content": "There are many."}],
    "conclusions": "They help.",
    "open_questions": ["How much?"],
}


def without_response_format() -> Rewrite:
    """What scripts the model is a grammar, too, and vLLM takes one."""

    def rewrite(request: Request) -> Request:
        if not request.path.startswith("/v1/chat"):
            return request
        body = {key: value for key, value in json.loads(request.body).items() if key != "response_format"}
        return Request(request.method, request.path, request.headers, json.dumps(body).encode())

    return rewrite


def model(body: Body, turn: int) -> Answer:
    """What the examples' prompts ask for; the first turn of an agent with tools reads a file."""
    asked = json.dumps(body["messages"])
    if body.get("tools") and turn == 0 and "read_file" in json.dumps(body["tools"]) and "attention" in asked:
        return Answer("", (Call("read_file", {"path": "attention.txt"}),))
    for words, output in (
        ("Generate", PLAN),
        ("Answer this", ANSWER),
        ("Research this", ANSWER),
        ("Summarize", SUMMARY),
    ):
        if words in asked and "Results:" not in asked:
            return Answer(json.dumps(output))
    return Answer(json.dumps(SURVEY))


@asynccontextmanager
async def backend(vllm: Vllm, script: Any = model) -> AsyncIterator[tuple[str, Shim]]:
    async with shim(vllm.base_url, without_response_format(), scripted(script)) as link:
        yield engine_url("vllm", link.base_url), link


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with something to read."""
    for name, text in PAPERS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return tmp_path


async def test_basic_usage(vllm: Vllm, papers: Path) -> None:
    async with backend(vllm) as (url, link):
        results = await BatchAgent.run(
            task="Summarize this paper and extract the key result:\n\n{paper}",
            inputs=[{"paper": name} for name in PAPERS],
            tools=[Tool.web_search, Tool.read_file],
            output_schema=PaperSummary,
            model=vllm.model,
            backend=url,
            max_inflight=32,
            max_turns=3,
        )
    assert [result.output for result in results] == [PaperSummary(**SUMMARY)] * 2
    assert [result.turns for result in results] == [2, 1]
    assert any(PAPERS["attention.txt"] in exchange.received.body.decode() for exchange in link.exchanges)


async def test_streaming(vllm: Vllm, papers: Path) -> None:
    seen = {}
    async with backend(vllm) as (url, _):
        async for result in BatchAgent.stream(
            task="Summarize {paper}",
            inputs=[{"paper": f"paper {n}"} for n in range(4)],
            output_schema=PaperSummary,
            model=vllm.model,
            backend=url,
        ):
            seen[result.job_id] = result.output
    assert seen == {f"job-{n}": PaperSummary(**SUMMARY) for n in range(4)}


async def test_plan_map_reduce(vllm: Vllm, papers: Path) -> None:
    async with backend(vllm) as (url, _):
        results, paper = await BatchAgent.run_with_map_reduce(
            plan_prompt="Generate 20 research questions about: {topic}",
            plan_inputs={"topic": "KV cache optimization for multi-agent inference"},
            plan_output_schema=ResearchPlan,
            task="Research this question: {item}",
            output_schema=ResearchAnswer,
            reduce="Synthesize the answers into a survey.",
            reduce_schema=SurveyPaper,
            tools=[Tool.web_search],
            model=vllm.model,
            backend=url,
        )
    assert paper == SurveyPaper(**SURVEY)
    assert [result.output for result in results] == [ResearchAnswer(**ANSWER)] * 2


async def test_the_published_example_file_runs_as_it_is(vllm: Vllm, papers: Path) -> None:
    """`examples/auto_research.py` of the wheel of 0.2.0, found by our `batch_agent` instead of its own."""
    example = next(ORIGINAL_DIR.glob("lib/python3.*/site-packages/examples/auto_research.py"), Path("missing"))
    require("batch-agent", example)
    runner = (
        "import batch_agent, runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    async with backend(vllm) as (url, _):
        arguments = ["--topic", "caches", "--n-questions", "2", "--backend", url, "--model", vllm.model]
        command = [sys.executable, "-c", runner, str(example), *arguments]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env=env, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "Research answers: 2" in done.stdout
    assert "FAILED" not in done.stdout
    assert (papers / "paper.md").read_text().startswith("# A Survey of Caches\n\n## Abstract\n\nThey help.")


async def test_opencode(vllm: Vllm, papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("opencode", OPENCODE_COMMAND, RIPGREP_BIN_DIR / "rg")
    monkeypatch.setenv("PATH", f"{OPENCODE_COMMAND.parent}:{RIPGREP_BIN_DIR}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(papers / "home"))

    def reviewer(body: Body, turn: int) -> Answer:
        if not body.get("tools"):
            return Answer("A review")
        return Answer("", (Call("read", {"filePath": "caches.txt"}),)) if turn == 0 else Answer("No bugs.")

    async with backend(vllm, reviewer) as (url, link):
        results = await BatchAgent.run(
            runtime=OpenCodeRuntime(backend=url, model=vllm.model),
            task="Review this file for bugs: {file}",
            inputs=[{"file": name} for name in PAPERS],
            max_agents=20,
        )
    assert [result.output for result in results] == ["No bugs."] * 2, results
    assert [result.turns for result in results] == [2, 2]
    prompts = [exchange.received.body.decode() for exchange in link.to("/v1/chat")]
    assert any(PAPERS["caches.txt"] in prompt for prompt in prompts), prompts[-1][-2000:]


class Verdict(BaseModel):
    verdict: Literal["good", "bad"]
    is_sure: bool


async def test_the_engine_itself_keeps_to_the_schema(vllm: Vllm, papers: Path) -> None:
    """Random weights, nothing scripted: without the engine's grammar no answer would be an object."""
    results = await BatchAgent.run(
        task="Is {file} good?",
        inputs=[{"file": name} for name in PAPERS],
        output_schema=Verdict,
        model=vllm.model,
        backend=engine_url("vllm", vllm.base_url),
        sampling={"max_tokens": 200},
    )
    assert [type(result.output) for result in results] == [Verdict] * 2, results
    assert [result.turns for result in results] == [1, 1]


async def test_a_list_of_prompts_is_answered_in_order(vllm: Vllm) -> None:
    """Greedy answers to the same prompts, asked one by one, are the same."""
    prompts = [f"{n} is the number that comes before" for n in range(12)]
    sampling = {"max_tokens": 4, "temperature": 0}
    async with gateway(engine_url("vllm", vllm.base_url)) as running:
        together = await scatter_gather(prompts, gateway=running.base_url, sampling=sampling)
        alone = [await scatter_gather([one], gateway=running.base_url, sampling=sampling) for one in prompts]
    assert [result.error for result in together] == [None] * 12
    assert [result.output for result in together] == [one.output for (one,) in alone]
