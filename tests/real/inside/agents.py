"""Runs one client of a Python framework: agents.py BASE_URL NAME TASK [TIMERS]. It prints the answer.

TIMERS, of the last three: seconds of silence that it bears before the first event, and between two.
"""

# Runs in other environments than Turngate's.
# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-call"

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SYSTEM = "You explain programs. Read the files before you answer."


def read(path: str) -> str:
    """Reads a file.

    Args:
        path: The file.
    """
    return Path(path).read_text()


def run_smolagents(base_url: str, task: str, kind: str, max_steps: int) -> str:
    import smolagents

    model = smolagents.OpenAIServerModel("m", base_url, "x")
    agent = getattr(smolagents, kind)(tools=[smolagents.tool(read)], model=model, max_steps=max_steps)
    return str(agent.run(task))


async def run_langchain(base_url: str, task: str, first_s: float, gap_s: float) -> str:
    """By Responses; only its asynchronous stream has a timer between chunks."""
    from langchain_openai import ChatOpenAI

    timers = {"timeout": first_s, "stream_chunk_timeout": gap_s, "max_retries": 0}
    model = ChatOpenAI(model="m", base_url=base_url, api_key="x", use_responses_api=True, **timers)
    return "".join([str(chunk.text) async for chunk in model.astream(task)])


async def run_pydantic_ai(base_url: str, task: str, first_s: float, gap_s: float) -> str:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=base_url, api_key="x", max_retries=0)
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
    async with Agent(model, instructions=SYSTEM).run_stream(task, model_settings={"timeout": gap_s}) as run:
        return str(await run.get_output())


def run_litellm(base_url: str, task: str, first_s: float, gap_s: float) -> str:
    import litellm

    timers: dict[str, Any] = {"timeout": first_s, "stream_timeout": gap_s, "max_retries": 0}
    messages = [{"role": "user", "content": task}]
    about = {"model": "openai/m", "api_base": base_url, "api_key": "x"}
    stream = litellm.completion(**about, messages=messages, stream=True, **timers)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


RUNS: dict[str, Callable[..., str]] = {
    "smolagents-tools": lambda url, task: run_smolagents(url, task, "ToolCallingAgent", max_steps=9),
    "smolagents-tools-out-of-steps": lambda url, task: run_smolagents(url, task, "ToolCallingAgent", max_steps=2),
    "smolagents-code": lambda url, task: run_smolagents(url, task, "CodeAgent", max_steps=9),
    "langchain": lambda *asked: asyncio.run(run_langchain(*asked)),
    "pydantic-ai": lambda *asked: asyncio.run(run_pydantic_ai(*asked)),
    "litellm": run_litellm,
}

if __name__ == "__main__":
    base_url, name, task, *timers = sys.argv[1:]
    print(RUNS[name](f"{base_url}/v1", task, *map(float, timers)))
