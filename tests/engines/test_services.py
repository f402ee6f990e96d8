"""Laws of names that stand for several engines."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.engines.base import EngineAddress, KvEventSource
from gateway.engines.kinds import parse_address
from gateway.engines.services import Services, engines_behind
from tests.engines.watched_engine import NewEngine, Ticks, Watched


class Name:
    """A name that a test lets resolve to what it wants."""

    def __init__(self, *ips: str) -> None:
        self.ips = list(ips)

    async def resolve(self, host: str, port: int) -> list[str]:
        if not self.ips:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.ips


def test_a_url_says_that_its_name_stands_for_many() -> None:
    assert parse_address("vllm://service:8000?resolve=all").resolves_all
    assert not parse_address("vllm://service:8000").resolves_all
    assert parse_address("vllm://service:8000/v1?resolve=all").base_url == "http://service:8000"


@pytest.mark.parametrize(
    "url", ["vllm://s:8000?resolve=one", "vllm+https://s?resolve=all", "openai+https://s?resolve=all"]
)
def test_where_it_cannot_be_followed_it_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="resolve"):
        parse_address(url)


async def test_each_address_is_an_engine_with_all_that_was_said_of_the_name() -> None:
    sources = (KvEventSource("tcp://s:5557", "tcp://s:5558"), KvEventSource("tcp://*:5559"))
    service = EngineAddress(
        "vllm", "http://s:8000/path", "key", name="s:8000", kv_events=sources, resolves_all=True
    )
    first, second = await engines_behind(service, Name("10.0.0.2", "::1").resolve)
    assert first == EngineAddress(
        "vllm",
        "http://10.0.0.2:8000/path",
        "key",
        name="10.0.0.2:8000",
        kv_events=(KvEventSource("tcp://10.0.0.2:5557", "tcp://10.0.0.2:5558"), sources[1]),
    )
    assert (second.base_url, second.name) == ("http://[::1]:8000/path", "[::1]:8000")
    (named,) = await engines_behind(parse_address("vllm://s:8000", "pool"), Name("10.0.0.2").resolve)
    assert named.name == "pool-10.0.0.2:8000"


async def test_engines_come_and_go_with_the_addresses_of_their_name(
    watched: Watched, new_engine: NewEngine
) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"))
    port = int(monitor.engines[0].address.base_url.rpartition(":")[2])
    name, ticks, num_changes = Name(), Ticks(), 0

    async def changed() -> None:
        nonlocal num_changes
        num_changes += 1

    services = Services(monitor, changed, name.resolve, ticks.sleep)
    service = EngineAddress("vllm", f"http://s:{port}", name="pods", resolves_all=True)

    def behind() -> list[str]:
        return [engine.name for engine in monitor.engines if engine.name != "e0"]

    await services.follow([service])
    assert (behind(), num_changes) == ([], 0)
    try:
        for ips, expected in (
            (["127.0.0.1"], ["127.0.0.1"]),
            (["127.0.0.1", "127.0.0.2"], ["127.0.0.1", "127.0.0.2"]),
            (["127.0.0.2"], ["127.0.0.2"]),
            ([], ["127.0.0.2"]),  # a name server that is down takes no engine away
            (["127.0.0.1"], ["127.0.0.1"]),
        ):
            name.ips = ips
            await ticks.next_poll()
            assert behind() == [f"pods-{ip}:{port}" for ip in expected]
        assert num_changes == 4
        assert monitor.engines[-1].is_up
        await services.follow([])
        assert behind() == []
    finally:
        await services.stop()


async def test_an_address_that_is_configured_by_itself_is_one_engine(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    port = int((await engine.start()).rpartition(":")[2])
    monitor = await watched.start(parse_address(f"vllm://127.0.0.1:{port}"))
    services = Services(monitor, lambda: asyncio.sleep(0), Name("127.0.0.1").resolve)
    service = parse_address(f"vllm://s:{port}?resolve=all")
    await services.follow([service])
    assert len(monitor.engines) == 1
    await services.follow([])
    assert len(monitor.engines) == 1
    await services.stop()
