"""What tests of batches share: lines, and a batch followed to its end with the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import openai
import orjson
from openai.types import Batch

from tests.deadline import DEADLINE_S
from tests.path.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
Connect = Callable[..., openai.AsyncOpenAI]


def asks(custom_id: str, text: str = "", url: str = CHAT, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text or custom_id}]}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body | more}


def jsonl(rows: Iterable[dict[str, Any] | bytes]) -> bytes:
    return b"\n".join(row if isinstance(row, bytes) else orjson.dumps(row) for row in rows)


async def create(client: openai.AsyncOpenAI, rows: Iterable[dict[str, Any] | bytes], **more: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", jsonl(rows)), purpose="batch")
    wanted: Any = {"endpoint": CHAT, "completion_window": "24h"} | more
    return await client.batches.create(input_file_id=file.id, **wanted)


async def over(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(DEADLINE_S):
        while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def rows_of(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """By custom_id. Law: each is there once."""
    if file_id is None:
        return {}
    content = await client.files.content(file_id)
    rows = [orjson.loads(line) for line in content.content.splitlines()]
    found = {row["custom_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def plays(engine: FakeEngine, play: Any) -> None:
    engine.plays = [play] * 1_000
