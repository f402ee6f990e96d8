"""The known causes of slowness, each made at a running engine and explained by the gateway in front of it: what
`/v1/turngate/why` says, beside the time that the client measured.

A case needs an engine that is otherwise idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from gateway.access.keys import hashed
from gateway.cli.demo_fleet import prose
from tests.deadline import DEADLINE_S

Json = dict[str, Any]
POLL_S = 0.05
SAME = 0.03
"""Part by which the split may differ from the time that the client measured."""
SLACK_MS = 20.0
"""Of a loaded machine, for calls of half a second."""
SAME_QUEUE = 0.15
"""Part by which the engine's queue may differ from its own figure."""
LEAST_CASE_S, MOST_TRIES = 0.5, 5
"""A short call that took less came too late: its neighbour's prefill was over. Then the case is made again."""
LOOKUP = {"type": "object", "properties": {"q": {"enum": ["a"]}}, "required": ["q"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": "Looks up.", "parameters": LOOKUP}}]


@dataclass(frozen=True)
class Site:
    """An engine, and how gateways are put in front of it."""

    serve: Callable[..., AbstractAsyncContextManager[str]]
    """`serve(num_replicas=1, **settings)`: the base URL of a new gateway. A further replica is another address of
    the engine, or another engine."""
    lose_replica: Callable[[], Awaitable[None]]
    """The last replica of the gateway that serves now does not answer any more."""
    model: str
    long_tokens: int
    """Of a prompt that takes the engine a second or more."""
    queue_s: Callable[[], Awaitable[float | None]]
    """The engine's own sum of seconds in its queue. None: it has none."""
    calls_tool: Json = field(default_factory=dict)
    """Fields of a request whose answer calls `lookup`."""
    chars_per_token: float = 4.0
    num_output: int = 60
    """Tokens of an answer that takes the engine half a second or more."""
    slots: int = 2
    """Calls that the engine runs at once."""


@dataclass
class Timed:
    """One answer, as its client saw it."""

    began_at: float
    ended_at: float
    message: Json
    headers: Mapping[str, str]


@dataclass
class Front:
    """A gateway, and its client."""

    site: Site
    base_url: str
    session: aiohttp.ClientSession

    def prompt(self, name: str, num_tokens: int) -> list[Json]:
        text = prose(f"{name} {self.base_url}", round(num_tokens * self.site.chars_per_token))
        return [{"role": "user", "content": text}]

    async def ask(
        self, name: str, messages: Sequence[Json], num_output: int, headers: Mapping[str, str] = {}, **fields: Any
    ) -> Timed:
        """A call of the session `name`."""
        body = {"model": self.site.model, "messages": messages, "max_tokens": num_output} | fields
        if "tools" not in fields:
            body |= {"ignore_eos": True, "stream": True}
        sent = {"X-Turngate-Session": name, **headers}
        began_at = time.monotonic()
        async with self.session.post(f"{self.base_url}/v1/chat/completions", json=body, headers=sent) as response:
            content = await response.read()
            ended_at = time.monotonic()
            assert response.status == 200, content
            message = {} if body.get("stream") else (await response.json())["choices"][0]["message"]
            return Timed(began_at, ended_at, message, response.headers)

    def begin(self, *arguments: Any, **fields: Any) -> asyncio.Task[Timed]:
        return asyncio.create_task(self.ask(*arguments, **fields))

    async def page(self, path: str, headers: Mapping[str, str] = {}) -> Json:
        async with self.session.get(f"{self.base_url}{path}", headers=headers) as response:
            assert response.status == 200, await response.text()
            found: Json = await response.json()
        return found

    async def why(self, of: str, num_turns: int, headers: Mapping[str, str] = {}) -> Json:
        """The explanation, once so many calls are in it: an answer ends at its client a little earlier."""
        path = f"/v1/turngate/why?of={of}" if of else "/v1/turngate/why"
        async with asyncio.timeout(DEADLINE_S):
            while (page := await self.page(path, headers))["turns"] < num_turns:
                await asyncio.sleep(POLL_S)
        return page

    async def until(self, name: str, *phases: str, headers: Mapping[str, str] = {}) -> None:
        """Wait until a session is in one of the phases."""
        async with asyncio.timeout(DEADLINE_S):
            while await self._phase(name, headers) not in phases:
                await asyncio.sleep(POLL_S)

    async def until_sent(self, names: Sequence[str]) -> None:
        """Wait until the gateway has sent a call of each session."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                rows = (await self.page("/v1/turngate/live?limit=1000"))["sessions"]
                if {row.get("client_session") for row in rows if row["phase"] != "waiting"}.issuperset(names):
                    return
                await asyncio.sleep(POLL_S)

    async def _phase(self, name: str, headers: Mapping[str, str]) -> str:
        rows = (await self.page("/v1/turngate/live", headers))["sessions"]
        return next((str(row["phase"]) for row in rows if row.get("client_session") == name), "")

    async def learn(self, headers: Mapping[str, str] = {}) -> None:
        """Show the gateway how fast the engine computes prompts."""
        for number, part in enumerate((8, 4, 8, 3, 8, 4, 3)):
            await self.ask(f"warm-{number}", self.prompt(f"w{number}", self.site.long_tokens // part), 2, headers)


@asynccontextmanager
async def front(site: Site, **settings: Any) -> AsyncIterator[Front]:
    timeout, as_many_as_asked = aiohttp.ClientTimeout(total=10 * DEADLINE_S), aiohttp.TCPConnector(limit=0)
    async with (
        site.serve(**settings) as base_url,
        aiohttp.ClientSession(timeout=timeout, connector=as_many_as_asked) as session,
    ):
        yield Front(site, base_url, session)


def assert_explained(page: Json, cause: str, began_at: float, ended_at: float) -> None:
    """The cause comes first, and the parts sum to the client's time."""
    assert page["cause"] == cause, page
    assert sum(page["split"].values()) == pytest.approx(1000 * (ended_at - began_at), rel=SAME, abs=SLACK_MS), page


# ---- the cases


async def gate_full(site: Site) -> None:
    """Two sessions, of which the pool holds one."""
    size = site.long_tokens
    async with front(site, policy__capacity_tokens=round(1.5 * size)) as gateway:
        await gateway.learn()
        one = gateway.begin("one", gateway.prompt("one", size), 100, {"X-Turngate-Final": "true"})
        await gateway.until("one", "prefill", "decode")
        other = await gateway.ask("other", gateway.prompt("other", size), 4)
        await one
        page = await gateway.why("other", 1)
        assert_explained(page, "room", other.began_at, other.ended_at)
        assert "of KV" in page["remedy"]


async def slots_full(site: Site) -> None:
    """A call for which the engine has no slot, which the gateway does not know."""
    async with front(site, policy__slots_per_replica=1_000) as gateway:
        await gateway.learn()
        before_s = await site.queue_s()
        names = [f"call-{number}" for number in range(site.slots + 1)]
        calls = [gateway.begin(name, gateway.prompt(name, 100), site.num_output) for name in names]
        await gateway.until_sent(names)
        last = await gateway.ask("last", gateway.prompt("last", 100), site.num_output)
        await asyncio.gather(*calls)
        page = await gateway.why("last", 1)
        assert_explained(page, "engine_queue", last.began_at, last.ended_at)
        assert "--max-num-seqs" in page["remedy"]
        after_s = await site.queue_s()
        if before_s is not None and after_s is not None:
            pages = [page, *[await gateway.why(name, 1) for name in names]]
            ours_s = sum(one["split"].get("engine_queue", 0.0) for one in pages) / 1000
            assert ours_s == pytest.approx(after_s - before_s, rel=SAME_QUEUE), [one["timeline"] for one in pages]


async def long_prefill(site: Site) -> None:
    """A short call behind a long prompt of another session."""
    async with front(site, policy__slots_per_replica=64) as gateway:
        await gateway.learn()
        for number in range(MOST_TRIES):
            long = gateway.begin(f"long-{number}", gateway.prompt(f"long-{number}", 2 * site.long_tokens), 2)
            await gateway.until(f"long-{number}", "prefill", "decode")
            short = await gateway.ask(f"short-{number}", gateway.prompt(f"short-{number}", 50), 4)
            await long
            if short.ended_at - short.began_at > LEAST_CASE_S:
                break
        page = await gateway.why(f"short-{number}", 1)
        assert_explained(page, "beside", short.began_at, short.ended_at)
        assert "prompts of other calls" in page["remedy"]


async def slow_tool(site: Site) -> None:
    """A tool of the client between two turns."""
    async with front(site) as gateway:
        prompt = gateway.prompt("task", 100)
        first = await gateway.ask("agent", prompt, 200, tools=TOOLS, **site.calls_tool)
        assert "tool_calls" in first.message, first.message
        [call] = first.message["tool_calls"]
        tool_s = 3 * (first.ended_at - first.began_at) + 1
        await asyncio.sleep(tool_s)
        result = {"role": "tool", "tool_call_id": call["id"], "content": "A result."}
        last = await gateway.ask("agent", [*prompt, first.message, result], 4)
        page = await gateway.why("agent", 2)
        assert_explained(page, "tools", first.began_at, last.ended_at)
        assert page["tools"]["lookup"] == pytest.approx(1000 * tool_s, rel=SAME)
        assert "Tool `lookup`" in page["remedy"]


async def over_its_share(site: Site) -> None:
    """A call of a tenant that got much and has the only slot, behind those of another one that got little."""
    big, small = "tg-key-of-big-0123456789-0123456789", "tg-key-of-small-0123456789-0123456789"
    keys = [{"key": hashed(key), "name": name, "tenant": name} for name, key in (("big", big), ("small", small))]
    by = {name: {"Authorization": f"Bearer {key}"} for name, key in (("big", big), ("small", small))}
    async with front(site, keys=keys, policy__slots_per_replica=1) as gateway:
        await gateway.ask("earlier", gateway.prompt("earlier", 100), 2, by["small"])
        await gateway.ask("big", gateway.prompt("big", site.long_tokens // 4), 2, by["big"])
        one = gateway.begin("first", gateway.prompt("first", 100), 4 * site.num_output, by["big"])
        await gateway.until("first", "prefill", "decode", headers=by["big"])
        others = [
            gateway.begin(f"o{n}", gateway.prompt(f"o{n}", 100), site.num_output, by["small"]) for n in range(2)
        ]
        for number in range(2):
            await gateway.until(f"o{number}", "waiting", headers=by["small"])
        second = await gateway.ask("second", gateway.prompt("second", 100), 4, by["big"])
        await asyncio.gather(one, *others)
        page = await gateway.why("second", 1, by["big"])
        assert_explained(page, "share", second.began_at, second.ended_at)
        assert "keys[].weight" in page["remedy"]


async def dead_replica(site: Site) -> None:
    """Calls for two replicas, of which one does not answer any more."""
    async with front(site, num_replicas=2, policy__slots_per_replica=1) as gateway:
        await gateway.learn()
        await site.lose_replica()
        calls = [gateway.begin(f"call-{n}", gateway.prompt(f"c{n}", 100), site.num_output) for n in range(3)]
        answers = await asyncio.gather(*calls)
        async with asyncio.timeout(DEADLINE_S):
            while all(one["is_up"] for one in (await gateway.why("", 3))["replicas"]):
                await asyncio.sleep(POLL_S)
        slowest = max(range(3), key=lambda number: answers[number].ended_at - answers[number].began_at)
        page = await gateway.why(f"call-{slowest}", 1)
        assert_explained(page, "failed", answers[slowest].began_at, answers[slowest].ended_at)
        assert "failed or is down" in page["remedy"]


CASES = (gate_full, slots_full, long_prefill, slow_tool, over_its_share, dead_replica)
