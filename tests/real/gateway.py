"""The gateway as its users start it: `turngate serve` in a process of its own, and what it says of itself."""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.real.process import Server, free_port, server

ROOT = Path(__file__).parents[2]
"""Tools of tests are loaded from here."""
READY_DEADLINE_S = 120.0
IDLE_DEADLINE_S = 120.0
POLL_INTERVAL_S = 0.05
# A real engine on two cores can take all of them for tens of seconds; that it is slow then says nothing of it.
PATIENCE = {"probing.timeout_s": 120, "timeouts.connect_s": 120}
_SAMPLE = re.compile(r"([\w:]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Json = dict[str, Any]


@dataclass(frozen=True)
class Gateway:
    base_url: str
    """Without /v1."""
    server: Server

    @property
    def log_file(self) -> Path:
        """One JSON object per line; `receipts` reads it."""
        return self.server.log_file

    async def get(self, path: str) -> Json:
        """The body of an admin page that is JSON."""
        async with aiohttp.ClientSession() as session, session.get(self.base_url + path) as response:
            response.raise_for_status()
            answer: Json = await response.json()
        return answer

    async def sessions(self) -> list[Json]:
        """Of /v1/turngate/sessions, in order of first arrival."""
        return list((await self.get("/v1/turngate/sessions"))["sessions"])

    async def families(self) -> list[Json]:
        """Of /v1/turngate/families, in order of first arrival."""
        return list((await self.get("/v1/turngate/families"))["families"])

    async def until_idle(self) -> None:
        """Returns once no request is in it: then every receipt is written. A client is gone a little earlier."""
        async with asyncio.timeout(IDLE_DEADLINE_S):
            while any(row["state"] != "idle" for row in await self.sessions()):
                await asyncio.sleep(POLL_INTERVAL_S)

    async def receipt(self, receipt_id: str) -> Json:
        return await self.get(f"/v1/turngate/receipts/{receipt_id}")

    def receipts(self) -> list[Json]:
        """Of every request that has ended, in order of its end: the log line holds the receipt."""
        lines = [json.loads(line) for line in self.log_file.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if "outcome" in line]

    async def metric(self, name: str, **labels: str) -> float:
        return await sample(f"{self.base_url}/metrics", name, **labels)

    async def stop(self) -> None:
        await self.server.stop()


async def sample(metrics_url: str, name: str, **labels: str) -> float:
    """Sum of the Prometheus samples of that name which have these labels; 0 when there is none."""
    async with aiohttp.ClientSession() as session, session.get(metrics_url) as response:
        page = await response.text()
    samples = [match for line in page.splitlines() if (match := _SAMPLE.match(line)) and match[1] == name]
    return sum(float(s[3]) for s in samples if labels.items() <= dict(_LABEL.findall(s[2] or "")).items())


@asynccontextmanager
async def gateway(*engines: str, **settings: Any) -> AsyncIterator[Gateway]:
    """In front of `engines` (`vllm://127.0.0.1:8000`), ready to serve on entry.

    `settings`: configuration keys with `__` for the dot, such as `policy__name="fifo"`; anything but text is
    passed as JSON.
    """
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    keys = (
        {"logging.format": "json"}
        | PATIENCE
        | {name.replace("__", "."): value for name, value in settings.items()}
    )
    command: list[str | Path] = [sys.executable, "-m", "gateway", "serve", "--port", str(port)]
    command += [part for engine in engines for part in ("--engine", engine)]
    for name, value in keys.items():
        command += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]

    async def is_ready(session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{base_url}/ready") as response:
            return response.status == 200

    with tempfile.TemporaryDirectory(prefix="turngate-gateway-") as log_dir:
        async with server("gateway", command, {"PYTHONPATH": str(ROOT)}, Path(log_dir)) as running:
            await running.wait_until_ready(is_ready, READY_DEADLINE_S)
            yield Gateway(base_url, running)


def engine_url(kind: str, base_url: str) -> str:
    """`vllm`, `http://host:port` -> `vllm://host:port`; also of a shim."""
    return f"{kind}://{base_url.removeprefix('http://')}"
