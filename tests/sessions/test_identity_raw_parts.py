"""A request is recognised alike, whether or not its raw parts are known from an earlier one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.keys import Caller
from gateway.core import pieces
from gateway.core.fields import Json
from gateway.core.slices import finished
from gateway.core.transport import Request
from gateway.dialects import BY_PATH, canonical
from gateway.exchange import Exchange, Payload, Timings
from gateway.sessions.identity import Cutter, Identity
from policies.recognition import chains, lineage
from tests.telemetry.observed import Asked

PATHS = ("/v1/chat/completions", "/v1/messages")
SECRET = b"s" * 32


def exchange(path: str, body: Json, raw: bytes) -> Exchange:
    request = cast(Request, Asked({}))
    payload, caller = Payload(raw, body, "m", "m"), Caller("tenant", may_prioritise=False)
    return Exchange("id", request, BY_PATH[path], Timings(0.0), payload=payload, caller=caller)


def histories(seed: int) -> list[list[Json]]:
    """Conversations that grow, fork, repeat, and change at their ends, mixed; system texts in some of them."""
    rng = random.Random(seed)
    alive: list[list[Json]] = []
    sent = []
    for _ in range(40):
        if not alive or rng.random() < 0.2:
            system = [{"role": "system", "content": rng.choice("ab") * 700}] if rng.random() < 0.7 else []
            alive.append([*system, {"role": "user", "content": rng.choice(["short", "long " * 300])}])
        messages = rng.choice(alive)
        change = rng.random()
        if change < 0.6:
            said = {"role": "assistant", "content": rng.choice(["yes", "no ", "perhaps "]) * rng.randint(1, 400)}
            messages = [*messages, said, {"role": "user", "content": str(rng.randint(0, 3))}]
            if rng.random() < 0.7:
                alive[rng.randrange(len(alive))] = messages
        elif change < 0.7 and len(messages) > 2:
            messages = messages[:-1]
        elif change < 0.8:
            messages = [*messages[:-1], {"role": "user", "content": "changed"}]
        sent.append(messages)
    return sent


def seen(
    path: str, sent: list[list[Json]], cutter: Cutter, is_large: Callable[[int], bool] = lambda number: False
) -> list[tuple[object, ...]]:
    identity = Identity(secret=SECRET, cutter=cutter)
    found: list[tuple[object, ...]] = []
    for number, messages in enumerate(sent):
        tools = [{"type": "function", "function": {"name": f"tool {number % 3}", "description": "d" * 300}}]
        body: Json = {"model": "m", "messages": messages} | ({"tools": tools} if number % 4 else {})
        arrived = exchange(path, body, orjson.dumps(body))
        if is_large(number):
            arrived.cut = finished(pieces.cut(arrived.payload.raw)) if number % 3 else None
            script = finished(identity.script_in_steps(arrived))
        else:
            script = identity.script(arrived)
        found_as = identity.recognise(arrived, script, float(number))
        identity.answered(arrived, number % 5 != 0, float(number))
        found.append(
            (
                found_as.session_id,
                found_as.family_id,
                found_as.turn_index,
                found_as.kind,
                found_as.chars,
                list(found_as.blocks),
            )
        )
    return found


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_nothing_is_recognised_otherwise_by_raw_text(path: str, seed: int) -> None:
    sent = histories(seed)
    assert seen(path, sent, Cutter()) == seen(path, sent, Cutter(is_fast=False))


@pytest.mark.parametrize("path", [*PATHS, "/v1/responses"])
@pytest.mark.parametrize("is_fast", [True, False])
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_a_body_that_is_read_in_slices_is_recognised_as_at_once(path: str, is_fast: bool, seed: int) -> None:
    sent = histories(seed)
    at_once = seen(path, sent, Cutter(is_fast))
    assert seen(path, sent, Cutter(is_fast), lambda number: True) == at_once
    assert seen(path, sent, Cutter(is_fast), lambda number: number % 2 == 0) == at_once, "whatever came before"


@pytest.mark.parametrize("path", [*PATHS, "/v1/responses", "/v1/completions"])
@pytest.mark.parametrize("num_long", [1, 40])
def test_nothing_of_a_large_body_is_written_while_it_is_recognised(
    path: str, num_long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a new one, nor of one that came before and whose session stands elsewhere now or is forgotten."""
    text = "a long text\n" * (400_000 // num_long)
    first: list[Json] = [{"role": "user", "content": f"{at} {text}"} for at in range(num_long)]
    grown = [*first, {"role": "assistant", "content": f"yes {text}"}, {"role": "user", "content": "go on"}]
    identity, written = Identity(secret=SECRET), list[int]()
    dump, chain = canonical.dump, chains.block_chain

    def dumped(given: Any) -> bytes:
        written.append(len(found := dump(given)))
        return found

    def chained(key: bytes, parts: Iterable[bytes], *more: Any) -> Any:
        written.append(sum(map(len, parts := list(parts))))
        return chain(key, parts, *more)

    for number, messages in enumerate([first, first, grown, first, [*grown, *first], first, first]):
        body: Json = {"messages": messages, "input": messages, "prompt": orjson.dumps(messages).decode()}
        arrived = exchange(path, body, orjson.dumps(body))
        arrived.cut = finished(pieces.cut(arrived.payload.raw))
        script = finished(identity.script_in_steps(arrived))
        with monkeypatch.context() as patch:
            patch.setattr(canonical, "dump", dumped)
            patch.setattr(lineage, "block_chain", chained)
            found = identity.recognise(arrived, script, float(number))
        identity.answered(arrived, number % 3 != 0, float(number))
        assert sum(written) <= 10_000, f"prompt {number}"
        written.clear()
        if number == 5:
            identity.forget_session("tenant", found.session_id)


def test_slices_that_end_early_change_nothing() -> None:
    sent = histories(7)
    identity, arrived = (
        Identity(secret=SECRET),
        exchange(PATHS[0], body := {"messages": sent[0]}, orjson.dumps(body)),
    )
    num_steps = len(list(identity.script_in_steps(arrived)))
    for stop_after in range(num_steps):
        other = Identity(secret=SECRET)
        steps = other.script_in_steps(arrived)
        for _, _ in zip(range(stop_after), steps, strict=False):
            pass
        steps.close()
        found = other.recognise(arrived, other.script(arrived), 0.0)
        assert (other.num_sessions, other.num_families, found.turn_index) == (1, 1, 0)
        assert other._tools.num_bytes == sum(one.size_bytes for one in other._tools._kept.values())


@pytest.mark.parametrize(
    "raw", [b"{}", b'{"messages":[]}', b'{"messages":3}', b'{"messages":[1],"tools":null}', b"["]
)
def test_a_body_without_messages_is_no_error(raw: bytes) -> None:
    Cutter().cut(raw)
