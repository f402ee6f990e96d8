"""Laws of calling a provider that throttles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from gateway.core.transport import Body, HeaderList, Timeouts, Upstream, UpstreamReply
from gateway.engines.base import EngineAdapter, EngineAddress, ProviderClient
from gateway.engines.kinds import parse_address
from gateway.engines.providers.translation import WholeReply
from gateway.engines.providers.upstream import ENDLESS_TOKENS, PATIENCE_S, ProviderUpstream
from policies.capacity import FIRST_LIMIT
from policies.types import ReplicaReported

BASE = "http://provider"
ENGINE = "http://engine"
FULL: tuple[int, str, HeaderList] = (429, "{}", [])


@dataclass
class Scripted:
    """An upstream that gives (status, body, headers) by turns, and the last one for ever."""

    script: Sequence[tuple[int, str, HeaderList]]
    calls: list[str] = field(default_factory=list)

    async def call(
        self, method: str, url: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> UpstreamReply:
        self.calls.append(url)
        status, text, sent = self.script[min(len(self.calls), len(self.script)) - 1]
        return WholeReply(status, sent, text.encode())

    async def close(self) -> None: ...


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


Make = Callable[..., ProviderUpstream]


@pytest.fixture
def make(time: Time) -> Make:
    def make(scripted: Scripted, kind: str = "anthropic") -> ProviderUpstream:
        addresses = [EngineAddress(kind, BASE), EngineAddress("vllm", ENGINE)]
        return ProviderUpstream(scripted, addresses, lambda: time.now, sleep=time.sleep, chance=lambda: 0.0)

    return make


async def post(upstream: ProviderUpstream, base: str = BASE) -> UpstreamReply:
    return await upstream.call("POST", f"{base}/v1/chat/completions", [], b"{}", Timeouts())


def slots(upstream: ProviderUpstream) -> int | None:
    return upstream.reported(ReplicaReported("r"), BASE).slots


async def test_a_refused_call_is_sent_again_when_it_may_be(make: Make, time: Time) -> None:
    scripted = Scripted([(429, "{}", [("Retry-After", "3")]), (529, "{}", []), (200, "{}", [])])
    assert (await post(make(scripted))).status == 200
    assert time.pauses == [3.25, 0.5]


async def test_patience_ends_with_the_last_refusal(make: Make, time: Time) -> None:
    reply = await post(make(Scripted([FULL])))
    assert (reply.status, await reply.read(10)) == (429, b"{}")
    assert PATIENCE_S / 2 < time.now <= PATIENCE_S


async def test_an_empty_account_is_not_asked_again(make: Make, time: Time) -> None:
    reply = await post(make(Scripted([(429, '{"error": {"code": "insufficient_quota"}}', [])])))
    assert (reply.status, time.pauses) == (429, [])


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_other_failures_are_passed_on(make: Make, time: Time, status: int) -> None:
    assert (await post(make(Scripted([(status, "{}", [])])))).status == status
    assert time.pauses == []


async def test_a_refusal_lowers_the_slots_and_answers_that_are_open_count(make: Make) -> None:
    scripted = Scripted([(200, "{}", [])] * 10 + [FULL, (200, "{}", [])])
    upstream = make(scripted)
    replies = [await post(upstream) for _ in range(11)]
    assert slots(upstream) == 7  # of the 11 that were in flight
    for reply in replies:
        reply.close(reuse=True)
        reply.close(reuse=True)
    assert (await post(upstream)).status == 200
    assert slots(upstream) == 7


async def test_a_call_that_is_cancelled_is_in_flight_no_more(make: Make) -> None:
    upstream = make(Scripted([FULL]))

    async def for_ever(seconds: float) -> None:
        await asyncio.Event().wait()

    upstream._sleep = for_ever
    task = asyncio.create_task(post(upstream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert upstream._providers[BASE].in_flight == 0


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (EngineAddress("anthropic", BASE), (FIRST_LIMIT, ENDLESS_TOKENS)),
        (EngineAddress("bedrock", BASE), (FIRST_LIMIT, ENDLESS_TOKENS)),
        (EngineAddress("openai", "https://service", "key"), (FIRST_LIMIT, ENDLESS_TOKENS)),
        (EngineAddress("openai", BASE, "key"), (None, None)),
        (EngineAddress("vllm", ENGINE, "key"), (None, None)),
    ],
)
def test_slots_and_capacity_of_a_rented_engine_are_added(
    address: EngineAddress, expected: tuple[int | None, int | None]
) -> None:
    upstream = ProviderUpstream(Scripted([]), [address], lambda: 0.0)
    fact = upstream.reported(ReplicaReported("r"), address.base_url)
    assert (fact.slots, fact.capacity_tokens) == expected


async def test_engines_of_ones_own_are_called_straight(make: Make, time: Time) -> None:
    assert (await post(make(Scripted([FULL])), ENGINE)).status == 429
    assert time.pauses == []


async def test_a_server_of_ones_own_is_asked_without_bound_until_it_refuses(make: Make) -> None:
    scripted = Scripted([(200, "{}", [])] * 10 + [FULL, (200, "{}", [])])
    upstream = make(scripted, "openai")
    for _ in range(10):
        await post(upstream)
    assert slots(upstream) is None
    await post(upstream)
    assert slots(upstream) == 7


class OwnProvider(EngineAdapter):
    """A provider that is written in one file of an operator, and named by its import path."""

    kind = "own"
    service_url = "https://own.example"
    throttles = True

    def is_rented(self, address: EngineAddress) -> bool:
        return True

    def client(
        self, upstream: Upstream, address: EngineAddress, wall_clock: Callable[[], float]
    ) -> ProviderClient:
        return Prefixed(upstream, address.base_url)


@dataclass
class Prefixed:
    """Its paths begin otherwise than OpenAI's."""

    upstream: Upstream
    base_url: str

    async def call(
        self, method: str, path: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> UpstreamReply:
        return await self.upstream.call(method, f"{self.base_url}/api{path}", headers, body, timeouts)


async def test_a_provider_of_ones_own_is_one_class_named_by_its_import_path(time: Time) -> None:
    address = parse_address(f"{__name__}:OwnProvider://")
    scripted = Scripted([FULL, (200, "{}", [])])
    upstream = ProviderUpstream(scripted, [address], lambda: time.now, sleep=time.sleep)
    assert (await post(upstream, address.base_url)).status == 200
    assert scripted.calls == ["https://own.example/api/v1/chat/completions"] * 2
    assert upstream.reported(ReplicaReported("r"), address.base_url).capacity_tokens == ENDLESS_TOKENS
