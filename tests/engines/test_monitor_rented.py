"""Laws of watching rented engines: nothing is asked that costs tokens, and their pages are read rarely."""

from __future__ import annotations

import pytest

from gateway.core.transport import Body, HeaderList, Timeouts, Upstream, UpstreamReply
from gateway.engines.base import EngineAddress
from gateway.engines.breaker import USUAL
from gateway.engines.poller import RENTED_POLL_S
from gateway.engines.providers.translation import WholeReply
from policies.types import ReplicaReported
from tests.engines.watched_engine import Watched

MODELS = b'{"data":[{"id":"m"}]}'
RENTED = EngineAddress("openai", "https://provider", "key", name="rented")
OWN = EngineAddress("openai", "http://gpu1:8080", "key", name="own")


class Provider:
    """An upstream to servers that list one model; nothing goes over the connections of the other."""

    def __init__(self, unused: Upstream) -> None:
        self._unused = unused
        self.calls: list[str] = []
        self.status = 200

    async def call(
        self, method: str, url: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> UpstreamReply:
        self.calls.append(f"{method} {url}")
        return WholeReply(self.status if url.endswith("/v1/models") else 404, [], MODELS)

    async def close(self) -> None:
        await self._unused.close()

    def num_polls(self) -> int:
        return sum(call.endswith("/v1/models") for call in self.calls)


@pytest.fixture
def provider(watched: Watched) -> Provider:
    provider = Provider(watched.upstream)
    watched.upstream = provider
    return provider


async def pass_seconds(watched: Watched, num: int) -> None:
    for _ in range(num):
        watched.now += 1
        await watched.ticks.next_poll()


async def test_a_rented_server_is_sent_no_prompt_and_polled_once_in_five_minutes(
    watched: Watched, provider: Provider
) -> None:
    await watched.start(RENTED, probes=True)
    await pass_seconds(watched, 5)
    assert not [call for call in provider.calls if call.startswith("POST")]
    assert provider.num_polls() == 1
    watched.now += RENTED_POLL_S
    await pass_seconds(watched, 5)
    assert provider.num_polls() == 2


async def test_an_own_server_is_probed_and_polled_each_second(watched: Watched, provider: Provider) -> None:
    await watched.start(OWN, probes=True)
    await pass_seconds(watched, 5)
    assert [call for call in provider.calls if call.startswith("POST")]
    assert provider.num_polls() == 6


async def test_a_rented_engine_is_reported_each_second_so_that_its_throttling_reaches_the_scheduler(
    watched: Watched, provider: Provider
) -> None:
    await watched.start(RENTED)
    watched.take_facts()
    await pass_seconds(watched, 3)
    assert [type(fact) for fact in watched.take_facts()] == [ReplicaReported] * 3


async def test_a_rented_engine_that_refuses_a_connection_is_polled_until_it_is_back(
    watched: Watched, provider: Provider
) -> None:
    monitor = await watched.start(RENTED)
    provider.status = 500
    monitor.failed(monitor.engines[0])
    await pass_seconds(watched, 2)
    assert not monitor.engines[0].is_up
    provider.status = 200
    await pass_seconds(watched, 1)
    assert monitor.engines[0].is_up
    assert provider.num_polls() == 4


async def test_a_failed_poll_of_a_rented_engine_is_repeated_at_once(watched: Watched, provider: Provider) -> None:
    monitor = await watched.start(RENTED)
    provider.status = 500
    watched.now += RENTED_POLL_S
    await pass_seconds(watched, 2)
    assert not monitor.engines[0].is_up


async def test_an_open_circuit_of_a_rented_engine_ends_without_a_poll(
    watched: Watched, provider: Provider
) -> None:
    monitor = await watched.start(RENTED, EngineAddress("anthropic", "https://other", "key", name="other"))
    for _ in range(USUAL.failures):
        monitor.erred("rented")
    watched.now += USUAL.open_s
    watched.take_facts()
    await pass_seconds(watched, 2)
    reports = [fact for fact in watched.take_facts() if isinstance(fact, ReplicaReported)]
    assert {fact.replica_id: fact.is_on_trial for fact in reports}["rented"]
    assert provider.num_polls() == 2
