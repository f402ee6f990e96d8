"""Tenants of equal weight over HTTP, of which one floods: the part of the computed tokens that each other one has,
and how long it waits for its first token, against a run in which all behave.

The engine is the embedded one, in real time; it states its slots, or speaks as vLLM does and is never polled.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
import orjson

from benchmarks.results import command_parser, write
from gateway.access.keys import hashed
from gateway.app import App
from gateway.config.settings import Embedded, Settings
from gateway.embedded.server import InProcessEngine

ENGINE = {"slots": 4, "speed": 2}
FLOOD = "tenant0"
NUM_LANES, NUM_FLOOD_LANES = 12, 60
PROMPT_WORDS, ANSWER_TOKENS = 300, 24
FLOODS = {"turns alike": (1, 1), "prompts 5 times as long": (5, 1), "answers 10 times as long": (1, 10)}
NUMBERS = 2, 4, 8
WARM_S, MEASURED_S = 2.0, 5.0
"""For each tenant: a turn of one among N waits N times as long, and shares are those of many turns."""


@dataclass
class Played:
    """What one run computed and how long its turns waited, by tenant."""

    tokens: Counter[str] = field(default_factory=Counter)
    first_token_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def least_part(self) -> float:
        """Return the least part that a tenant other than the flood got; 1 is fair."""
        fair = sum(self.tokens.values()) / len(self.tokens)
        return min(tokens for tenant, tokens in self.tokens.items() if tenant != FLOOD) / fair

    def p99_s(self) -> float:
        """Return the longest p99 of a tenant other than the flood."""
        waits = [sorted(waits_s) for tenant, waits_s in self.first_token_s.items() if tenant != FLOOD]
        return max(waits_s[int(0.99 * len(waits_s))] for waits_s in waits)


def _key(tenant: str) -> str:
    return f"tg-key-of-{tenant}-0123456789-0123456789"


@asynccontextmanager
async def embedded_gateway(engine: dict[str, Any], states_slots: bool, **settings: Any) -> AsyncIterator[str]:
    """Lend the base URL of a gateway in this process. An engine that speaks as vLLM does tells nothing of its
    slots."""
    server = InProcessEngine(Embedded.model_validate(engine))
    url = f"vllm://127.0.0.1:{await server.start()}"
    tree: dict[str, Any] = {
        "listen": {"port": 0},
        "engines": ["embedded" if states_slots else url],
        "embedded": engine,
        "probing": {"interval_s": 3600},
        "timeouts": {"shutdown_grace_s": 0},
    }
    app = App(Settings.model_validate(tree | settings))
    try:
        await app.start()
        yield f"http://127.0.0.1:{app.port}"
    finally:
        await app.stop()
        await server.stop()


def gateway(num_tenants: int, states_slots: bool) -> AbstractAsyncContextManager[str]:
    """Return a gateway with a key for each tenant."""
    tenants = [f"tenant{number}" for number in range(num_tenants)]
    keys = [{"key": hashed(_key(one)), "name": one, "tenant": one} for one in tenants]
    return embedded_gateway(ENGINE, states_slots, keys=keys)


class Clients:
    """Lanes of several tenants that never stop; each call is a conversation of its own."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url, self._http, self._calls = f"{url}/v1/chat/completions", http, count()
        self.played = Played()
        self._answered = asyncio.Event()

    def lanes(self, num_tenants: int, flood: tuple[int, int] | None) -> list[asyncio.Task[None]]:
        """Start all. `flood`: how many times as long its prompts and answers are; None: all behave."""
        usual = [f"tenant{number}" for number in range(1 if flood else 0, num_tenants)] * NUM_LANES
        lanes = [self.lane(tenant, 1, 1) for tenant in usual]
        lanes += [self.lane(FLOOD, *flood) for _ in range(NUM_FLOOD_LANES)] if flood else []
        return [asyncio.create_task(lane) for lane in lanes]

    async def count_turns(self, num_tenants: int, num: int) -> None:
        """Measure until each tenant but the flood has had so many answers."""
        self.played = Played()
        others = [f"tenant{number}" for number in range(1, num_tenants)]
        while min(len(self.played.first_token_s[tenant]) for tenant in others) < num:
            self._answered.clear()
            await self._answered.wait()

    async def lane(self, tenant: str, longer_prompts: int, longer_answers: int) -> None:
        headers = {"Authorization": f"Bearer {_key(tenant)}"}
        while True:
            text = f"task {next(self._calls)} of {tenant}: " + "word " * (PROMPT_WORDS * longer_prompts)
            body = {
                "model": "embedded",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": ANSWER_TOKENS * longer_answers,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            await self._ask(tenant, body, headers)

    async def _ask(self, tenant: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        asked_at, first_at, usage = time.monotonic(), 0.0, None
        async with self._http.post(self._url, json=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                first_at = first_at or time.monotonic()
                if line.startswith(b"data: {"):
                    usage = orjson.loads(line[6:]).get("usage") or usage
        assert usage is not None
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.played.tokens[tenant] += usage["prompt_tokens"] - cached + usage["completion_tokens"]
        self.played.first_token_s[tenant].append(first_at - asked_at)
        self._answered.set()


async def play(
    num_tenants: int, states_slots: bool, flood: tuple[int, int] | None, warm_s: float, seconds: float
) -> Played:
    """Play for some time; see `Clients.lanes`."""
    unbounded = aiohttp.TCPConnector(limit=0)
    async with gateway(num_tenants, states_slots) as url, aiohttp.ClientSession(connector=unbounded) as http:
        clients = Clients(url, http)
        tasks = clients.lanes(num_tenants, flood)
        await asyncio.wait(tasks, timeout=warm_s, return_when=asyncio.FIRST_EXCEPTION)
        clients.played = Played()
        failed, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in failed:
            task.result()
        return clients.played


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--tenants", type=int, nargs="+", default=NUMBERS, help="how many; one run for each")
    parser.add_argument(
        "--warm", type=float, default=WARM_S, help="seconds for each tenant before the measured ones"
    )
    parser.add_argument("--seconds", type=float, default=MEASURED_S, help="measured seconds for each tenant")
    given = parser.parse_args()
    rows, data = [], []
    for states_slots in (True, False):
        for num in given.tenants:
            warm_s, seconds = given.warm * num, given.seconds * num
            calm = asyncio.run(play(num, states_slots, None, warm_s, seconds))
            for name, flood in FLOODS.items():
                beside = asyncio.run(play(num, states_slots, flood, warm_s, seconds))
                slots = "stated" if states_slots else "unknown"
                part, before_s, wait_s = beside.least_part(), calm.p99_s(), beside.p99_s()
                rows.append(f"| {slots} | {num} | {name} | {part:.2f} | {before_s:.2f} | {wait_s:.2f} |")
                data.append({"slots": slots, "tenants": num, "flood": name, "tokens": dict(beside.tokens)})
                print(rows[-1], flush=True)
    table = "\n".join(
        (
            f"Least part of the computed tokens of a tenant with {NUM_LANES} lanes (1 is fair), beside a flood of "
            f"{NUM_FLOOD_LANES} lanes;",
            "the longest p99 of its time to the first token, in seconds, where all behave and beside the flood.",
            "",
            "| slots | tenants | flood | part | p99 before | p99 beside |",
            "|---|---|---|---|---|---|",
            *rows,
        )
    )
    write(given.results, "tenants", table, data)


if __name__ == "__main__":
    main()
