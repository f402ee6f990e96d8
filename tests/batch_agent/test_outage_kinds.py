"""The ways in which a gateway does not answer, over real connections, and what becomes of a batch meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from batch_agent import BatchAgent, Outage, Tool, connection, scatter_gather, tree_reduce
from batch_agent.connection import Connection, probed_socket
from batch_agent.results import ConnectError
from batch_agent.runtimes import OpenCodeRuntime
from tests.batch_agent.scripted import Asked, Scripted, calls, completion, says
from tests.deadline import DEADLINE_S

BAD_GATEWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
)
CUT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
KINDS = ("refused", "reset", "cut", "bad gateway")


class Between:
    """A proxy in front of a gateway, which fails in the way that a test says. A connection that is open when it
    begins to fail is lost, in that way."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.fails = ""
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        self._server = None

    async def fail(self, kind: str) -> None:
        self.fails = kind
        for writer in list(self._open):
            if kind in ("cut", "bad gateway"):
                writer.write(CUT if kind == "cut" else BAD_GATEWAY)
                await writer.drain()
                writer.close()
            else:
                writer.transport.abort()
        if kind == "refused":
            await self.stop()

    async def mend(self) -> None:
        self.fails = ""
        if self._server is None:
            await self.start()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fails:
            await self._refuse(reader, writer)
            return
        self._open.add(writer)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        answers = asyncio.create_task(_copy(there, writer))
        try:
            await _copy(reader, back)
        finally:
            answers.cancel()
            self._open.discard(writer)
            back.close()
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fails == "bad gateway":
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(BAD_GATEWAY)
                await writer.drain()
            writer.close()
        else:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def between(gateway: Scripted) -> AsyncIterator[Between]:
    proxy = Between(gateway.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


class Reports:
    """An outage that is looked at often, and what a person was told of it."""

    def __init__(self, outage_s: float = 600.0) -> None:
        self.lines: list[str] = []
        self.outage = Outage(outage_s, self.lines.append, sleep=lambda seconds: asyncio.sleep(seconds / 50))

    async def waits(self, num: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.outage.num_waiting < num or not self.outage.is_waited_for:
                await asyncio.sleep(0.001)


def restore_interrupts() -> None:
    """A shell starts its background jobs with SIGINT ignored, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def held(gateway: Scripted, num: int) -> asyncio.Event:
    """Two turns and a tool for each agent; the second answers of so many come when the event is set."""
    goes_on = asyncio.Event()

    async def script(asked: Asked) -> Any:
        if not asked.num_turns:
            return calls("ship", json.dumps({"n": int(asked.task)}))
        if not goes_on.is_set():
            await goes_on.wait()
        return says(f"{asked.task} {asked.last['content']}")

    gateway.script = script
    return goes_on


@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_goes_on_after_an_outage_and_no_tool_runs_twice(
    gateway: Scripted, between: Between, kind: str
) -> None:
    shipped: Counter[int] = Counter()

    @Tool.define(cacheable=False)
    async def ship(n: int) -> str:
        """Ship."""
        shipped[n] += 1
        return "shipped"

    reports, goes_on = Reports(), held(gateway, 5)
    run = asyncio.create_task(
        BatchAgent.run(
            task="{n}",
            inputs=[{"n": n} for n in range(5)],
            tools=[ship],
            max_turns=2,
            max_retries=0,
            model="m",
            gateway=between.url,
            outage=reports.outage,
        )
    )
    await gateway.until(lambda: len(gateway.asked) == 10)
    await between.fail(kind)
    await reports.waits(5)
    assert len(reports.lines) == 1
    goes_on.set()
    await between.mend()
    results = await run
    assert [result.output for result in results] == [f"{n} shipped" for n in range(5)]
    assert shipped == Counter(range(5))
    assert {result.attempts for result in results} == {1}
    again = gateway.asked[10:]
    assert len(again) == 5
    assert all(int(asked.headers["X-Turngate-Lost-Ms"]) > 0 for asked in again)
    assert {asked.headers["x-stainless-retry-count"] for asked in again} == {"1"}
    assert len(reports.lines) == 2


async def test_a_stream_of_results_goes_on_too_and_leaving_it_in_an_outage_leaves_nothing(
    gateway: Scripted, between: Between
) -> None:
    reports = Reports()

    async def script(asked: Asked) -> Any:
        if asked.task != "0" and asked.number < 3:
            await asyncio.Event().wait()
        return says(asked.task)

    gateway.script = script
    seen = []
    async for result in BatchAgent.stream(
        task="{n}", inputs=[{"n": n} for n in range(3)], model="m", gateway=between.url, outage=reports.outage
    ):
        seen.append(result.output)
        if len(seen) == 1:
            await gateway.until(lambda: len(gateway.asked) == 3)
            await between.fail("refused")
            await reports.waits(2)
            await between.mend()
    assert sorted(seen) == ["0", "1", "2"]
    goes_on = asyncio.Event()

    async def hold(asked: Asked) -> Any:
        await goes_on.wait()
        return says("x")

    gateway.script = hold
    num = len(gateway.asked)
    task = asyncio.create_task(
        BatchAgent.run(task="x", inputs=[{}] * 3, model="m", gateway=between.url, outage=reports.outage)
    )
    await gateway.until(lambda: len(gateway.asked) == num + 3)
    await between.fail("refused")
    await reports.waits(3)
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), reports.outage.num_waiting) == (True, 0)
    goes_on.set()


async def test_a_gateway_that_goes_between_two_stages_is_waited_for(gateway: Scripted, between: Between) -> None:
    """Also by what is asked before a stage: which model there is."""
    reports = Reports()
    down: list[asyncio.Task[None]] = []

    async def come_back() -> None:
        await reports.waits(1)
        await between.mend()

    def script(asked: Asked) -> Any:
        if "{items}" in asked.task:
            return says('{"items": ["a", "b"]}')
        return says('{"x": 1}')

    async def between_stages(result: Any) -> None:
        if not down:
            down.append(asyncio.create_task(come_back()))
            await between.fail("refused")

    gateway.script = script
    schema = {"type": "object"}
    results, reduced = await BatchAgent.run_with_reduce(
        task="go",
        inputs=[{}],
        output_schema=schema,
        reduce="sum up",
        reduce_schema=schema,
        gateway=between.url,
        outage=reports.outage,
        on_result=between_stages,
    )
    assert (results[0].output, reduced) == ({"x": 1}, {"x": 1})
    assert len(reports.lines) == 2
    await asyncio.gather(*down)


async def test_lists_of_prompts_are_sent_again(gateway: Scripted, between: Between) -> None:
    reports, goes_on = Reports(), asyncio.Event()

    async def script(asked: Asked) -> Any:
        if len(gateway.asked) == 1:
            await goes_on.wait()
        prompts = asked.body["prompt"]
        answer = completion(says(""))
        answer["choices"] = [{"index": n, "text": prompt.upper()} for n, prompt in enumerate(prompts)]
        return answer

    gateway.script = script
    run = asyncio.create_task(
        scatter_gather(["a", "b"], gateway=between.url, max_retries=0, outage=reports.outage)
    )
    await gateway.until(lambda: len(gateway.asked) == 1)
    await between.fail("refused")
    await reports.waits(1)
    goes_on.set()
    await between.mend()
    assert [result.output for result in await run] == ["A", "B"]
    assert await tree_reduce("{texts}", ["a", "b", "c"], fan_in=2, gateway=between.url) == "A\n\nB\n\nC"


async def test_a_batch_that_is_gone_on_with_waits_for_the_gateway_that_it_had(
    gateway: Scripted, between: Between, tmp_path: Path
) -> None:
    """As after a restart of the machine, where the client is there first."""
    spec = {"task": "x", "inputs": [{}], "model": "m", "gateway": between.url, "checkpoint_dir": tmp_path}
    await between.fail("refused")
    reports = Reports()
    (failed,) = await BatchAgent.run(**spec, max_retries=0, outage=reports.outage)
    assert (failed.ok, reports.lines) == (False, []), "that may be a wrong address"
    run = asyncio.create_task(BatchAgent.run(**spec, max_retries=0, outage=reports.outage))
    await reports.waits(1)
    await between.mend()
    (result,) = await run
    assert result.ok


def opencode(place: Path, conversation: str) -> Path:
    """It writes down each run. The first one fails once there is a file `fail`."""
    event = {"type": "text", "sessionID": conversation, "part": {"text": "done"}}
    program = place / "opencode"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys, time\n"
        f"runs, event = open({str(place / 'began')!r}, 'a'), {json.dumps(event)!r}\n"
        "prompt = sys.stdin.read()\n"
        "print(sys.argv[sys.argv.index('--model') + 2:], prompt, file=runs, flush=True)\n"
        "print(event, flush=True)\n"
        "if 'Go on' in prompt: sys.exit()\n"
        f"while not os.path.exists({str(place / 'fail')!r}): time.sleep(0.01)\n"
        "print('cannot connect', file=sys.stderr); sys.exit(1)\n"
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_program_whose_gateway_was_gone_goes_on_with_its_conversation_and_is_not_begun_again(
    gateway: Scripted, between: Between, tmp_path: Path, goes_on: bool
) -> None:
    program, began, reports = opencode(tmp_path, "ses_1" if goes_on else ""), tmp_path / "began", Reports()
    (tmp_path / "work").mkdir()
    runtime = OpenCodeRuntime(
        opencode_bin=str(program), gateway=between.url, model="m", working_dir=str(tmp_path / "work")
    )
    run = asyncio.create_task(BatchAgent.run(task="do it", inputs=[{}], runtime=runtime, outage=reports.outage))
    while not began.exists() or not began.read_text():
        await asyncio.sleep(0.01)
    await between.fail("refused")
    (tmp_path / "fail").touch()
    await reports.waits(1)
    await between.mend()
    (result,) = await run
    runs = began.read_text().splitlines()
    if goes_on:
        assert result.output == "done"
        assert runs[0] == "[] do it"
        assert runs[1].startswith("['--session', 'ses_1'] The connection to the model was lost")
    else:
        assert len(runs) == 1
        assert result.error is not None
        assert (result.error.type, result.error.retryable) == ("WorkerError", True)
        assert "cannot connect" in result.error.message


async def test_a_name_that_cannot_be_looked_up_was_not_sent_and_says_so() -> None:
    def unknown(*asked: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with Connection("http://gateway.test:1/v1", get_addresses=unknown) as unreached:
        with pytest.raises(ConnectError, match="Name or service not known") as failed:
            await unreached.models()
        assert not failed.value.was_sent
        assert await unreached.problem() == str(failed.value)


def test_a_name_that_takes_minutes_to_look_up_does_not_keep_the_process() -> None:
    """The threads of the event loop are waited for when it ends: an interrupt took as long as the lookup."""
    asked, ends = threading.Event(), threading.Event()

    def hang(*_: Any) -> Any:
        asked.set()
        ends.wait()
        return []

    async def look_up() -> None:
        async with Connection("http://gateway.test:1/v1", get_addresses=hang) as slow:
            task = asyncio.create_task(slow.models())
            await asyncio.get_running_loop().run_in_executor(None, asked.wait)
            task.cancel()
            await asyncio.wait([task])

    thread = threading.Thread(target=asyncio.run, args=[look_up()], daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    ends.set()


async def test_a_connection_that_is_never_made_was_not_sent_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_S", 0.05)
    with socket.socket() as full, socket.socket() as other, socket.socket() as third:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for client in (other, third):
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        async with Connection(f"http://127.0.0.1:{full.getsockname()[1]}/v1") as unreached:
            with pytest.raises(ConnectError, match=r"no connection within 0\.05 s") as failed:
                await unreached.models()
    assert not failed.value.was_sent


def test_a_host_without_power_is_noticed_within_a_minute_or_so() -> None:
    with probed_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ())) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"
        idle_s, interval_s, count = (made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)
        assert idle_s + interval_s * count <= 90


async def test_the_command_reports_an_outage_and_an_interrupt_ends_it_at_once(
    gateway: Scripted, between: Between, tmp_path: Path
) -> None:
    async def script(asked: Asked) -> Any:
        await asyncio.Event().wait()

    gateway.script = script
    spec = {"task": "x", "inputs": [{}] * 3, "model": "m", "gateway": between.url, "outage_s": 1000}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    flags = "run", "--spec", str(tmp_path / "spec.json"), "--outage-s", "3000", "--quiet"
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "batch_agent.cli", *flags),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        preexec_fn=restore_interrupts,
    )
    assert command.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        await gateway.until(lambda: len(gateway.asked) == 3)
        await between.fail("refused")
        line = (await command.stderr.readline()).decode()
        assert f"nothing answers at {between.url}/v1: Connection refused; waiting for it since" in line
        command.send_signal(signal.SIGINT)
        assert await command.wait() == 130
        assert await command.stderr.read() == b""
