"""What recognising a turn costs in time, and remembering a session in memory, on made-up prompts."""

from __future__ import annotations

import random
import time
import tracemalloc

from policies.continuation import Call
from policies.lineage import Lineage


def synthetic(size: int, num_messages: int, noise: random.Random) -> tuple[bytes, ...]:
    each = size // num_messages
    return tuple(
        b'{"role":"user","content":"' + noise.randbytes(each // 2).hex().encode() for _ in range(num_messages)
    )


def turn_us(size: int, num_messages: int, rounds: int = 300) -> dict[str, float]:
    """Median microseconds of recognising a first turn, and a turn that adds two messages of 500 characters."""
    noise = random.Random(7)
    lineage = Lineage()
    first: list[float] = []
    later: list[float] = []
    for _ in range(rounds):
        messages = synthetic(size, num_messages, noise)
        for spent in (first, later):
            call = Call(b"key", (b"tool" * 50,), b"system" * 100, messages)
            begun = time.perf_counter()
            sighting = lineage.recognise(call, 0.0)
            spent.append((time.perf_counter() - begun) * 1e6)
            lineage.answered(sighting, True, (), 0.0)
            messages += synthetic(1000, 2, noise)
    return {"first_us": sorted(first)[rounds // 2], "later_us": sorted(later)[rounds // 2]}


def state_bytes(size: int, num_messages: int, sessions: int = 1_000, num_turns: int = 10) -> float:
    """Bytes that one session keeps after its last turn."""
    noise = random.Random(7)
    lineage = Lineage()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(sessions):
        messages = synthetic(size, num_messages, noise)
        for turn in range(num_turns):
            upto = num_messages - 2 * (num_turns - 1 - turn)
            sighting = lineage.recognise(Call(b"key", (b"tool",), b"system" * 100, messages[:upto]), 0.0)
            lineage.answered(sighting, True, (b"call_0123456789abcdef",), 0.0)
    del messages, sighting
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / sessions
