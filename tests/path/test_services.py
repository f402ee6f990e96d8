"""Law: engines come and go behind a name, as pods of a headless service do, and no request is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from gateway import app
from gateway.engines.services import Services
from tests.path.conftest import Answer, Start
from tests.path.fake_engine import FakeEngine
from tests.real.process import free_port

NUM_SESSIONS, NUM_TURNS = 12, 12


class Pods:
    """A local resolver, and a clock of looks at it."""

    def __init__(self) -> None:
        self.ips: list[str] = []
        self._looks = asyncio.Queue[asyncio.Event]()

    async def resolve(self, host: str, port: int) -> list[str]:
        return self.ips

    async def sleep(self, delay_s: float) -> None:
        over = asyncio.Event()
        self._looks.put_nowait(over)
        await over.wait()

    async def become(self, *ips: str) -> None:
        """Returns when the gateway has looked."""
        self.ips = list(ips)
        (await self._looks.get()).set()
        over = await self._looks.get()
        self._looks.put_nowait(over)


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Pods:
    found = Pods()
    monkeypatch.setattr(app, "Services", partial(Services, resolve=found.resolve, sleep=found.sleep))
    return found


async def test_pods_that_come_and_go_under_load_lose_no_request(start: Start, pods: Pods) -> None:
    port = free_port()
    engines = [FakeEngine(host=f"127.0.0.{n}") for n in (1, 2, 3)]
    for engine in engines:
        await engine.start(port)
    try:
        pods.ips = ["127.0.0.1"]
        gateway = await start(engines=[{"url": f"vllm://pods:{port}?resolve=all"}])

        async def session(number: int) -> list[Answer]:
            messages: list[Any] = [{"role": "user", "content": f"Task {number}. " * 50}]
            answers = []
            for turn in range(NUM_TURNS):
                answers.append(await gateway.ask({"model": "m", "messages": messages, "stream": turn % 2 == 0}))
                messages += [{"role": "assistant", "content": "-"}, {"role": "user", "content": f"Result {turn}"}]
            return answers

        def has_asked(num_calls: int) -> bool:
            return sum(len(engine.calls) for engine in engines) >= num_calls

        sessions = [asyncio.create_task(session(number)) for number in range(NUM_SESSIONS)]
        for step, ips in enumerate((("1", "2"), ("2", "3"), ("3",), ("1", "3"), ("2",)), 1):
            await gateway.until(partial(has_asked, 20 * step))
            await pods.become(*(f"127.0.0.{n}" for n in ips))
            names = [engine.name for engine in gateway.app.parts.monitor.engines]
            assert sorted(names) == [f"127.0.0.{n}:{port}" for n in ips]
        assert not all(task.done() for task in sessions), "the last change came too late"
        answers = [answer for done in await asyncio.gather(*sessions) for answer in done]
        assert [answer.status for answer in answers] == [200] * NUM_SESSIONS * NUM_TURNS
        assert not any(answer.is_cut for answer in answers)
        assert sum(len(engine.calls) for engine in engines) == len(answers)
        assert all(engine.calls for engine in engines)
    finally:
        for engine in engines:
            await engine.stop()
