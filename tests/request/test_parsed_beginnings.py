"""A body is parsed alike, whatever came before, and messages that came before are not parsed again."""

from __future__ import annotations

import random
from sys import getsizeof
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.fields import Json
from gateway.request.parsed_beginnings import ParsedBeginnings
from gateway.sessions.identity import Cutter

CUTTER = Cutter()
MANY_BYTES = 2**30


def beginnings(max_bytes: int = MANY_BYTES, block_bytes: int = 64) -> ParsedBeginnings:
    return ParsedBeginnings(CUTTER, max_bytes, least_bytes=0, block_bytes=block_bytes)


def message(at: int, size: int = 80) -> Json:
    return {"role": "user", "content": f"{at} " + "é" * size, "parts": [{"at": at}]}


def growing(num_turns: int, **more: Any) -> list[bytes]:
    bodies = [
        {"model": "m", "messages": [message(at) for at in range(2 * num)]} for num in range(1, num_turns + 1)
    ]
    return [orjson.dumps(body | more) for body in bodies]


ODD_MESSAGES = (
    "1",
    "12",
    '"a"',
    "{}",
    "null",
    "[]",
    '{"messages":[1]}',
    '{"a":"\\ud83d\\ude00"}',
    '{"a":1,"a":2}',
)
COMMAS = (",", ", ", " ,\n", ",,", "", "\x0b,")
HEADS = ("{", '{"model":"m",', '{"messages":[{"a":1}],', '{"x":{"messages":[{"role":"user"}]},', " {", '[{"a":')
KEYS = ('"messages":[', '"messages" : [ ', '"mess\\u0061ges":[', '"messages":{', '"input":[')
TAILS = (
    "]}",
    "]} ",
    '],"tools":[{"a":1}]}',
    '],"messages":[{"b":2}]}',
    '],"messages":null}',
    "]",
    "]}}",
    '],"x":[1]}',
)


def odd_bodies(seed: int) -> list[bytes]:
    """Bodies that grow from each other, in all spellings, some of them no JSON."""
    rng = random.Random(seed)
    alive: list[tuple[str, list[str], list[str]]] = []
    bodies = []
    for number in range(30):
        if not alive or rng.random() < 0.15:
            alive.append((rng.choice(HEADS[:2] if rng.random() < 0.7 else HEADS) + rng.choice(KEYS[:2]), [], []))
            if rng.random() < 0.2:
                alive[-1] = (rng.choice(HEADS) + rng.choice(KEYS), [], [])
        which = rng.randrange(len(alive))
        head, commas, items = alive[which]
        new = [
            rng.choice(ODD_MESSAGES)
            if rng.random() < 0.1
            else orjson.dumps(message(number, rng.randrange(90))).decode()
            for _ in range(rng.randrange(3))
        ]
        kept = items if rng.random() < 0.8 else items[: rng.randrange(len(items) + 1)]
        commas = [*commas[: len(kept)], *(rng.choice(COMMAS[:2] if rng.random() < 0.95 else COMMAS) for _ in new)]
        items = [*kept, *new]
        spelled = [rng.choice(COMMAS) if rng.random() < 0.02 else comma for comma in commas]
        if rng.random() < 0.8:
            alive[which] = head, commas, items
        text = "".join(
            comma * (at > 0) + item for at, (comma, item) in enumerate(zip(spelled, items, strict=True))
        )
        raw = f"{head}{text}{rng.choice(TAILS[:3] if rng.random() < 0.8 else TAILS)}".encode()
        if rng.random() < 0.1:
            at = rng.randrange(len(raw))
            raw = raw[:at] + rng.choice((b"", b'"', b"\xff", b"]", b"\\")) + raw[at + 1 :]
        bodies.append(raw)
    return bodies


def value_or_error(parse: Any, *given: Any) -> object:
    try:
        return parse(*given)
    except orjson.JSONDecodeError as error:
        return error.msg, error.lineno, error.colno


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), block_bytes=st.sampled_from((16, 64, 300)))
def test_a_body_has_the_value_the_error_and_the_fingerprints_that_it_has_alone(
    seed: int, block_bytes: int
) -> None:
    known = beginnings(20_000, block_bytes)
    for raw in odd_bodies(seed):
        alone, found = value_or_error(orjson.loads, raw), value_or_error(known.loads, raw, "tenant")
        if isinstance(found, tuple) and len(found) == 2:
            found, parts = found
            if parts is not None:
                assert parts == CUTTER.cut(raw), raw
        assert found == alone, raw
        assert known.num_bytes == sum(one.size_bytes for one in known._kept) <= 20_000
        assert set(known._by_link.values()) == set(known._kept), "all of them can be found"


def test_the_list_that_counts_is_the_last_one() -> None:
    known, raw = beginnings(block_bytes=8), b'{"messages":[{"a":1},{"a":2}],"messages":[{"b":1},{"b":2}]}'
    for body in (raw, raw[: raw.index(b"]")] + b',{"a":3}]}', raw):
        assert known.loads(body, "tenant")[0] == orjson.loads(body)


@pytest.mark.parametrize("more", [{}, {"tools": [{"a": "b" * 500}], "stream": True}])
def test_a_turn_shares_the_messages_of_the_turn_before(more: Json) -> None:
    known, before = beginnings(), list[Any]()
    for raw in growing(20, **more):
        body, _ = known.loads(raw, "tenant")
        messages = body["messages"]
        assert body == orjson.loads(raw)
        assert all(one is other for one, other in zip(messages, before, strict=False)), "none is parsed again"
        before = messages
        assert len(known._kept) == 1, "the longer one replaces the shorter"


def test_first_turns_share_the_messages_that_they_begin_with() -> None:
    known = beginnings(block_bytes=1_000)
    shared = [message(at, 300) for at in range(3)]
    bodies = [orjson.dumps({"messages": [*shared, message(number, 600)]}) for number in range(5, 8)]
    found = [known.loads(raw, "tenant")[0]["messages"] for raw in bodies]
    assert all(messages[at] is found[0][at] for messages in found for at in range(3))
    assert [orjson.dumps({"messages": messages}) for messages in found] == bodies


def test_tenants_share_nothing() -> None:
    known, raw = beginnings(), growing(9)[-1]
    one, other = (known.loads(raw, tenant)[0]["messages"] for tenant in ("a", "b"))
    assert one == other
    assert not any(mine is others for mine, others in zip(one, other, strict=True))


def test_the_list_of_messages_and_all_else_belong_to_one_request() -> None:
    known, raw = beginnings(), growing(9, tools=[{"a": 1}])[-1]
    one, other = (known.loads(raw, "tenant")[0] for _ in range(2))
    one["messages"].clear()
    one["tools"].clear()
    assert other == known.loads(raw, "tenant")[0] == orjson.loads(raw)


def test_what_is_kept_is_bounded_in_bytes_which_are_counted_from_above() -> None:
    max_bytes = 200_000
    known = beginnings(max_bytes, block_bytes=1_000)
    for number in range(200):
        texts = [message(number * 100 + at, 200) for at in range(10)]
        known.loads(orjson.dumps({"messages": texts}), "tenant")
        kept = [one["content"] for beginning in known._kept for one in beginning.messages]
        assert sum(map(getsizeof, kept)) <= known.num_bytes <= max_bytes
    num_kept = len(known._kept)
    assert num_kept > 10
    known.loads(orjson.dumps({"messages": [message(1, max_bytes)]}), "tenant")
    assert len(known._kept) == num_kept, "one that does not fit drops no other"


def test_a_message_of_many_values_is_not_kept() -> None:
    known = beginnings()
    known.loads(orjson.dumps({"messages": [message(1), {"numbers": list(range(100_000))}]}), "tenant")
    assert not known.num_bytes


def test_small_bodies_and_those_without_msgspec_are_parsed_alone() -> None:
    raw = growing(9)[-1]
    for known in (ParsedBeginnings(CUTTER, MANY_BYTES), ParsedBeginnings(Cutter(is_fast=False), MANY_BYTES, 0)):
        assert known.loads(raw, "tenant") == (orjson.loads(raw), None)
        assert not known.num_bytes
