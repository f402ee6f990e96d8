"""Laws of kept receipts; what is in one is tested with the Observer."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.errors import Failure, Outcome
from gateway.exchange import Exchange, Recognition, RequestEnd
from gateway.telemetry.receipts import Receipts, size_bytes, values_of
from policies.types import TurnKind
from tests.telemetry.observed import exchange, observer

MUCH = 2**20
USED = {"cached_tokens": 900, "output_tokens": 50}


def put(kept: Receipts, receipt_id: str, now: float, **changes: Any) -> None:
    ended = exchange(id=receipt_id, **changes)
    ended.timings.finished_at = now
    kept.put(receipt_id, values_of(ended))


def test_receipts_are_kept_for_their_time_and_no_more_than_allowed() -> None:
    kept = Receipts(keep_s=10, max_kept=2, max_bytes=MUCH)
    for number, now in ((1, 0.0), (2, 1.0), (3, 2.0)):
        put(kept, str(number), now)
    assert [kept.get(str(number), "a", 2.0) is not None for number in (1, 2, 3)] == [False, True, True]
    assert kept.get("2", "a", 11.0) is None
    put(kept, "4", 20.0)
    assert len(kept) == 1


def test_receipts_are_listed_by_session_agent_or_receipt_oldest_first_and_for_their_tenant_only() -> None:
    kept = Receipts(keep_s=10, max_kept=10, max_bytes=MUCH)
    recognised = Recognition("session-1", "f", None, 0, TurnKind.AGENT, "chain", 1.0, False, (), 0, agent="worker")
    other = replace(recognised, session_id="session-2", client_session="my-run", agent="")
    for number, one in enumerate((recognised, other, recognised)):
        put(kept, f"r{number}", float(number), recognition=one)

    def ids(wanted: str, tenant: str | None = "a", now: float = 2.0, most: int = 10) -> list[str]:
        return [row["id"] for row in kept.of(wanted, tenant, now, most)]

    assert ids("session-1") == ids("worker") == ids("r0") == ["r0", "r2"]
    assert ids("session-2") == ids("my-run") == ids("r1") == ["r1"]
    assert ids("sessio") == ids("") == ["r0", "r1", "r2"]
    assert ids("", most=2) == ["r1", "r2"]
    assert ids("ses") == ids("nothing") == []
    assert ids("worker", tenant=None) == ["r0", "r2"]
    assert ids("worker", tenant="b") == ids("r0", tenant="b") == []
    assert ids("worker", now=11.5) == ["r2"]
    assert [row["ended_ago_s"] for row in kept.of("worker", "a", 5.0, 10)] == [5.0, 3.0]


def test_no_receipt_is_kept_when_that_is_switched_off() -> None:
    kept = Receipts(keep_s=0, max_kept=2, max_bytes=MUCH)
    put(kept, "1", 0.0)
    assert (len(kept), kept.num_bytes) == (0, 0)


def test_receipts_are_bounded_in_bytes_and_the_oldest_go_first() -> None:
    kept = Receipts(keep_s=1e9, max_kept=10**6, max_bytes=20_000)
    for number in range(200):
        put(kept, str(number), float(number), notes=[f"{number} " + "n" * 200] * (number % 7))
        assert kept.num_bytes <= 20_000
    assert 5 <= len(kept) < 25
    assert [kept.get(str(number), "a", 200.0) is not None for number in (0, 100, 199)] == [False, False, True]
    for number in range(200):
        put(kept, f"small {number}", 1e12 + number)
    assert kept.num_bytes == sum(size_bytes(values) for values, _ in kept._kept.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "m" * 10_000},
        {"model": "é" * 200 + "\U0001f600", "notes": ["a note of a hundred characters " * 3] * 20},
        {
            "rounds": [{"replica": "a", "prompt_tokens": 10_000, "tools": [{"name": "f", "ms": 1.5}] * 3} | USED]
            * 4
        },
    ],
    ids=["plain", "a long model", "notes", "rounds"],
)
def test_a_receipt_takes_about_the_memory_that_it_is_counted_for(changes: dict[str, Any]) -> None:
    num, kept = 1_000, Receipts(keep_s=1e9, max_kept=10**6, max_bytes=10**12)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(num):
            put(kept, f"{number:032x}", float(number), **_fresh(changes, number))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # An exchange here shares its session and its times with the others.
    assert 0.8 * taken < kept.num_bytes < 1.8 * taken, (taken / num, kept.num_bytes / num)


def _fresh(value: Any, number: int) -> Any:
    """A copy that shares nothing with others: no two requests have the same texts."""
    if isinstance(value, dict):
        return {key: _fresh(item, number) for key, item in value.items()}
    if isinstance(value, list):
        return [_fresh(item, number * len(value) + at) for at, item in enumerate(value)]
    return f"{value}{number}" if isinstance(value, str) else value


def strange(text: str, **changes: Any) -> Exchange:
    made = exchange(model=text, **changes)
    made.request.headers = {"x-request-id": text}
    made.reply.finish_reason = text
    made.end = RequestEnd(Outcome.BAD_REQUEST, Failure(400, "invalid_request_error", text, text, text))
    made.notes.append(text)
    return made


def test_of_what_strangers_chose_only_a_start_is_kept_and_in_one_line() -> None:
    values = values_of(strange("id\n\x1b[2J" + "i" * 60_000))
    assert size_bytes(values) < 4_000
    texts = [value for value in values if isinstance(value, str)]
    assert max(map(len, texts)) == 256
    assert all(text.isprintable() for text in texts)


def test_whoever_is_not_known_leaves_no_receipt() -> None:
    seen = observer()
    stranger = exchange(tenant="", outcome=Outcome.UNAUTHORISED, recognition=None, dispatch=None)
    seen.finished(stranger)
    assert seen.receipt(stranger.id, None) is None
    assert "X-Turngate-Receipt" not in dict(seen.receipt_headers(stranger))


def test_a_receipt_names_the_client_s_id_to_its_tenant_and_a_hash_of_it_to_the_operator() -> None:
    kept = Receipts(keep_s=10, max_kept=2, max_bytes=MUCH)
    who = Recognition(
        *("s1", "f1", None, 1, TurnKind.AGENT, "x-session-id", 1.0, False, (), 0),
        agent="opencode",
        client_session="ses_1",
        client_hash="00ff",
    )
    put(kept, "1", 0.0, recognition=who)
    shown = [kept.get("1", tenant, 0.0) for tenant in ("a", None)]
    assert [(row["agent"], row["client_session"]) for row in shown if row] == [
        ("opencode", "ses_1"),
        ("opencode", "00ff"),
    ]
    assert all("client_hash" not in row for row in shown if row)
    assert kept.get("1", "b", 0.0) is None
