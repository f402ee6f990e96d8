"""Clients of a soak: sessions of every wire format that stream or not, leave, read slowly, and send nonsense.

Each request has an id of its own and ends with what its client saw; the gateway's log is held against that.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import aiohttp
import orjson

from tests.fuzz.shapes import REQUESTS, raw_of

Json: TypeAlias = dict[str, Any]
HANGS_S = 120.0
"""A request that takes longer is stuck: engines go silent for no more than their time-outs allow."""
THINKS_S = (0.1, 1.2)
SHARED = "You are one of many agents that share these instructions. " * 40
MOST_PROMPTS = 40
"""Of a list."""
JSON_TYPE = {"Content-Type": "application/json"}
HOSTILE = tuple(REQUESTS.values())
LEAVES, SLOW, NONSENSE = 0.08, 0.02, 0.03


class ClientOutcome(StrEnum):
    """How a request ended for its client."""

    ANSWERED = "answered"
    REFUSED = "refused"  # a status of 400 or more
    CUT = "cut"  # the connection broke after the headers
    LEFT = "left"  # the client itself went away
    DROPPED = "dropped"  # the connection broke before a status, which must never happen
    STUCK = "stuck"


@dataclass(slots=True)
class RequestRecord:
    """What came of one request."""

    outcome: ClientOutcome
    status: int = 0
    """0: no headers came."""
    error: str = ""
    """Of the connection."""


@dataclass(slots=True)
class Clients:
    """`run` them until cancelled; `records` has every request that was sent and is over."""

    base_url: str
    seed: int
    pace: float = 1.0
    """By how much they think less, and how much shorter their lists of prompts are."""
    num_hostile: int = 0
    """Further clients, which send the shapes of `tests/fuzz/shapes.py`, each up to its full length."""
    records: dict[str, RequestRecord] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    is_over: bool = False

    async def run(self, num_clients: int) -> None:
        """Until `is_over`; a turn that has begun ends first."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(self.base_url, connector=connector, timeout=timeout) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(num_clients):
                group.create_task(self._client(http, random.Random(f"{self.seed}/{number}"), number))
            for number in range(self.num_hostile):
                group.create_task(self._hostile(http, random.Random(f"{self.seed}/hostile/{number}"), number))

    async def _client(self, http: aiohttp.ClientSession, chance: random.Random, number: int) -> None:
        for session in itertools.count():
            if self.is_over:
                return
            await self._session(http, chance, f"{self.seed}-{number}-{session}")

    async def _hostile(self, http: aiohttp.ClientSession, chance: random.Random, number: int) -> None:
        for turn in itertools.count():
            if self.is_over:
                return
            num, path, body = chance.choice(HOSTILE)
            raw = raw_of(body(max(1, int(num * chance.uniform(0.1, 1)))), stream=chance.random() < 0.5)
            request_id = f"{self.seed}-hostile-{number}-{turn}"
            self.paths[path] += 1
            record = await self._ask(http, path, raw, {"X-Request-Id": request_id}, chance)
            self.records[request_id] = record
            self.statuses[record.status] += 1
            await asyncio.sleep(chance.uniform(*THINKS_S) / self.pace)

    async def _session(self, http: aiohttp.ClientSession, chance: random.Random, name: str) -> None:
        path, shape = chance.choice(SHAPES)
        headers = {"X-Turngate-Session": name} if chance.random() < 0.5 else {}
        history = [SHARED, f"Task of {name}: {chance.random()}"]
        num_turns = chance.randint(1, 6)
        for turn in range(num_turns):
            if self.is_over:
                return
            if turn == num_turns - 1 and chance.random() < 0.3:
                headers = {**headers, "X-Turngate-Final": "1"}
            body = shape(history, chance)
            if isinstance(prompts := body.get("prompt"), list):
                body["prompt"] = prompts[: max(2, round(MOST_PROMPTS / self.pace))]
            if chance.random() < NONSENSE:
                body = body | chance.choice(WRONG)
            request_id = f"{name}-{turn}"
            self.paths[path] += 1
            raw = orjson.dumps(body)
            record = await self._ask(http, path, raw, headers | {"X-Request-Id": request_id}, chance)
            self.records[request_id] = record
            self.statuses[record.status] += 1
            history += ["words " * 8, f"Go on, step {turn}"]
            await asyncio.sleep(chance.uniform(*THINKS_S) / self.pace)

    async def _ask(
        self, http: aiohttp.ClientSession, path: str, raw: bytes, headers: dict[str, str], chance: random.Random
    ) -> RequestRecord:
        record = RequestRecord(ClientOutcome.DROPPED)
        leaves_s = chance.expovariate(3) if chance.random() < LEAVES else None
        asking = asyncio.create_task(_whole(http, path, raw, headers, record, chance.random() < SLOW))
        done, _ = await asyncio.wait((asking,), timeout=HANGS_S if leaves_s is None else leaves_s)
        if not done:
            asking.cancel()
            await asyncio.wait((asking,))
            record.outcome = ClientOutcome.STUCK if leaves_s is None else ClientOutcome.LEFT
        return record


async def _whole(
    http: aiohttp.ClientSession,
    path: str,
    raw: bytes,
    headers: dict[str, str],
    record: RequestRecord,
    is_slow: bool,
) -> None:
    try:
        async with http.post(path, data=io.BytesIO(raw), headers=JSON_TYPE | headers) as response:
            record.status = response.status
            while await response.content.readany():
                await asyncio.sleep(0.2 if is_slow else 0)
        record.outcome = ClientOutcome.REFUSED if record.status >= 400 else ClientOutcome.ANSWERED
    except (aiohttp.ClientError, OSError) as error:
        record.error = repr(error)
        record.outcome = ClientOutcome.CUT if record.status else ClientOutcome.DROPPED


def _chat(history: list[str], chance: random.Random) -> Json:
    roles = itertools.chain(["system"], itertools.cycle(["user", "assistant"]))
    messages = [{"role": role, "content": text} for role, text in zip(roles, history, strict=False)]
    return {"model": "m", "messages": messages, "stream": chance.random() < 0.7, "max_tokens": 64}


def _with_tools(history: list[str], chance: random.Random) -> Json:
    """The client's own tools."""
    function = {"name": "read_file", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
    return _chat(history, chance) | {"tools": [{"type": "function", "function": function}]}


def _with_our_tools(history: list[str], chance: random.Random) -> Json:
    """Under this name the gateway offers a tool, and runs it."""
    return _chat(history, chance) | {"model": "with-tools"}


def _messages(history: list[str], chance: random.Random) -> Json:
    body = _chat(history[1:], chance)
    for message, role in zip(body["messages"], itertools.cycle(["user", "assistant"]), strict=False):
        message["role"] = role
    return body | {"system": history[0]}


def _responses(history: list[str], chance: random.Random) -> Json:
    body = _chat(history, chance)
    return {"model": "m", "input": body["messages"], "stream": body["stream"], "store": False}


def _completions(history: list[str], chance: random.Random) -> Json:
    return {"model": "m", "prompt": "\n".join(history), "stream": chance.random() < 0.5}


def _list(history: list[str], chance: random.Random) -> Json:
    return _completions(history, chance) | {
        "prompt": [f"{history[0]} {n}" for n in range(chance.randint(2, MOST_PROMPTS))]
    }


SHAPES = (
    ("/v1/chat/completions", _chat),
    ("/v1/chat/completions", _with_tools),
    ("/v1/chat/completions", _with_our_tools),
    ("/v1/messages", _messages),
    ("/v1/responses", _responses),
    ("/v1/completions", _completions),
    ("/v1/completions", _list),
)
WRONG: tuple[Json, ...] = (
    {"stream": "yes"},
    {"model": 7},
    {"messages": None, "input": None, "prompt": None},
    {"messages": "hi", "input": 5, "prompt": {"a": 1}},
    {"stream_options": []},
)
