"""The outcome of a tool call as processes tell each other."""

from __future__ import annotations

from dataclasses import asdict

import orjson

from tool_runtime.outcome import Outcome
from tool_runtime.types import Status


def written(outcome: Outcome) -> bytes:
    return orjson.dumps(asdict(outcome))


def read(text: bytes) -> Outcome:
    told = orjson.loads(text)
    return Outcome(**told | {"status": Status(told["status"])})
