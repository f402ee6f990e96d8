"""Agents of two turns that search in between, as unmodified SDK clients: what they send, what models answer, and
the two ways to run them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from openai import AsyncOpenAI

from gateway.cli.demo_fleet import prose
from tests.real.scripts import Answer, Body, Call
from tests.real.shim import Exchange
from tool_runtime.types import Context, Effect, Json, Tool

PROMPT_CHARS = 5_000
"""About 2,048 tokens of the engines' tokenizer."""
MAX_TOKENS = 256
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
DESCRIPTION = "Searches the web."
SUMMARY = "The sources agree on the main points."


@dataclass(frozen=True)
class ToolFleet:
    """One workload."""

    name: str
    num_agents: int
    num_topics: int
    tool_s: float
    in_flight: int
    """Model calls at once, in both arms."""

    def task(self, agent: int) -> str:
        return f"You are researcher {agent}. Summarise what is known about {self.topic(agent)}."

    def topic(self, agent: int) -> str:
        return f"topic-{agent % self.num_topics}"

    def messages(self, agent: int) -> list[Any]:
        return [
            {"role": "system", "content": prose(self.name, PROMPT_CHARS)},
            {"role": "user", "content": self.task(agent)},
        ]

    def answers(self) -> tuple[Answer, ...]:
        """All that the model ever says."""
        return (Answer(SUMMARY), *(_search(self.topic(agent)) for agent in range(self.num_topics)))

    def script(self, body: Body, turn: int) -> Answer:
        """What the model answers: a search for its topic, then the summary."""
        topic = str(body["messages"][1]["content"]).rpartition("about ")[2].removesuffix(".")
        return Answer(SUMMARY) if turn or topic == "nothing" else _search(topic)


def _search(topic: str) -> Answer:
    return Answer("", (Call("search", {"q": topic}),))


def result_of(query: str) -> str:
    return f"Three sources on {query}: they agree on the main points, and differ on when and where they apply."


def build(settings: Mapping[str, Any]) -> Tool:
    """The search as the gateway loads it."""

    async def search(arguments: Json, context: Context) -> str:
        await asyncio.sleep(settings["seconds"])
        return result_of(arguments["q"])

    return Tool(name="search", description=DESCRIPTION, parameters=SCHEMA, run=search, effect=Effect.READ_ONLY)


@dataclass(frozen=True)
class ArmRun:
    """One arm."""

    wall_s: float
    num_answers: int
    num_searches: int
    """Executions of the tool."""
    prompts_sha256: str
    """Of all prompts that the engine got, in any order; ids of calls, which are random, left out."""


async def client_loop(fleet: ToolFleet, base_url: str, model: str) -> tuple[float, int, int]:
    """As agents are written: the slot is held from first to last. Seconds, answers, searches."""
    slots = asyncio.Semaphore(fleet.in_flight)
    tool: Any = {
        "type": "function",
        "function": {"name": "search", "description": DESCRIPTION, "parameters": SCHEMA},
    }
    num_searches = 0

    async def agent(number: int, client: AsyncOpenAI) -> str:
        nonlocal num_searches
        messages = fleet.messages(number)
        async with slots:
            while True:
                answer = await client.chat.completions.create(
                    model=model, messages=messages, tools=[tool], max_tokens=MAX_TOKENS
                )
                message = answer.choices[0].message
                if not message.tool_calls:
                    return message.content or ""
                messages.append(message.to_dict())
                for call in message.tool_calls:
                    assert call.type == "function"
                    num_searches += 1
                    await asyncio.sleep(fleet.tool_s)
                    text = result_of(orjson.loads(call.function.arguments)["q"])
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    wall_s, answers = await _all(fleet, base_url, agent)
    return wall_s, sum(SUMMARY in answer for answer in answers), num_searches


async def one_request_each(fleet: ToolFleet, base_url: str, model: str) -> tuple[float, int]:
    """Clients that know of no tool: the gateway runs it. Seconds, answers."""

    async def agent(number: int, client: AsyncOpenAI) -> str:
        answer = await client.chat.completions.create(
            model=model, messages=fleet.messages(number), max_tokens=MAX_TOKENS
        )
        return answer.choices[0].message.content or ""

    wall_s, answers = await _all(fleet, base_url, agent)
    return wall_s, sum(SUMMARY in answer for answer in answers)


async def warm_up(fleet: ToolFleet, base_url: str, model: str) -> None:
    """A cold first call is not a measurement. Its prompt shares nothing with those of the fleet."""
    messages: Any = [
        {"role": "system", "content": prose("warm", 500)},
        {"role": "user", "content": "about nothing."},
    ]
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0) as client:
        for _ in range(2):
            await client.chat.completions.create(model=model, messages=messages, max_tokens=MAX_TOKENS)


async def _all(fleet: ToolFleet, base_url: str, agent: Any) -> tuple[float, Sequence[str]]:
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0, timeout=600) as client:
        started = time.monotonic()
        answers = await asyncio.gather(*(agent(number, client) for number in range(fleet.num_agents)))
        return time.monotonic() - started, answers


def prompts_sha256(exchanges: Sequence[Exchange]) -> str:
    """Of the fleet's prompts as the engine got them."""
    prompts = sorted(map(_prompt, (orjson.loads(exchange.received.body) for exchange in exchanges)))
    return hashlib.sha256(b"\n".join(prompts)).hexdigest()[:16]


def _prompt(body: Json) -> bytes:
    messages = [
        [
            message["role"],
            message.get("content"),
            [call["function"] for call in message.get("tool_calls") or ()],
        ]
        for message in body["messages"]
    ]
    return orjson.dumps([messages, body.get("tools")], option=orjson.OPT_SORT_KEYS)
