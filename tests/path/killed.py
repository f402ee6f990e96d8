"""A gateway process with batches, which tests kill and start again on the same directory."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import openai
import orjson

from tests.deadline import DEADLINE_S
from tests.path.fake_engine import FakeEngine


class GatewayProcess:
    """`turngate serve` in front of one engine."""

    program = "-m", "gateway"
    stderr: IO[bytes] | None = None
    """Where its log goes; None: with that of the tests."""

    def __init__(self, engine: FakeEngine, directory: Path, *more: str) -> None:
        self._arguments = [
            *(*self.program, "serve", "--engine", f"vllm://127.0.0.1:{engine.port}"),
            *("--set", f"batches.directory={directory}", "--set", "probing.hints=false"),
            *("--set", "logging.level=warning", "--set", "policy.slots_per_replica=16"),
            *more,
        ]
        self.port = 0

    async def start(self) -> None:
        """On the port that it had before, if any."""
        command = sys.executable, *self._arguments, "--port", str(self.port)
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=self.stderr)
        assert self._process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            while (line := await self._process.stdout.readline()) and b"OPENAI_BASE_URL" not in line:
                pass
        found = re.search(rb":(\d+)/v1", line)
        assert found is not None
        self.port = int(found[1])

    def most_memory_bytes(self) -> int:
        """Its largest resident set up to now."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))

    @property
    def pid(self) -> int:
        return self._process.pid

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Its exit status, once it has one."""
        await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode

    async def kill(self) -> None:
        with suppress(ProcessLookupError):  # it is dead already
            self._process.send_signal(signal.SIGKILL)
        await self._process.communicate()

    async def stop(self) -> None:
        """As an operator stops it; nothing of it is left."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._process.communicate()
        except TimeoutError:
            await self.kill()
            raise


def connected(gateway: GatewayProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none", max_retries=0)


async def rows_of(client: openai.AsyncOpenAI, file_id: str) -> list[Any]:
    content = await client.files.content(file_id)
    return [orjson.loads(line) for line in content.content.splitlines()]
