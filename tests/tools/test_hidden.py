"""Laws of what clients were not shown: whether it comes back, and to the right session."""

from __future__ import annotations

from typing import Any

from gateway.dialects.chat import ChatTools
from gateway.tools.hidden import HiddenHistory, follow

CHAT = ChatTools()
USER = {"role": "user", "content": "hi"}
SAID: list[dict[str, Any]] = [
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "content": "x"},
]


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chain_of(*texts: str) -> bytes:
    chain = b""
    for _, _, mark in CHAT.answers([answer(text) for text in texts]):
        chain = follow(chain, mark)
    return chain


def restored(
    hidden: HiddenHistory, session: str, *history: dict[str, Any], now: float = 0.0, **more: Any
) -> list[int]:
    """Positions of the answers that are put back."""
    tenant, parent = more.get("tenant", "t"), more.get("parent")
    edits, _ = hidden.restore(tenant, session, parent, CHAT, list(history), now)
    return [edit.start for edit in edits]


def test_an_answer_is_put_back_where_it_stands_among_the_answers_before_it() -> None:
    hidden = HiddenHistory(10_000, 60)
    hidden.put("t", "s", chain_of("one", "two"), SAID, 0.0)
    assert restored(hidden, "s", USER, answer("one"), USER, answer("two")) == [3]
    assert restored(hidden, "s", answer("one"), answer("two"), answer("three")) == [1]
    assert restored(hidden, "s", USER, answer("two")) == []
    assert restored(hidden, "s", USER, answer("one"), answer("other")) == []


def test_what_a_client_changes_in_its_own_messages_does_not_matter() -> None:
    hidden = HiddenHistory(10_000, 60)
    hidden.put(
        "t",
        "s",
        chain_of("<think>long</think> The answer, in many words: forty-eight characters or more."),
        SAID,
        0,
    )
    parts = [{"type": "text", "text": " The answer, in many words: forty-eight characters or more. "}]
    assert restored(hidden, "s", USER, {"role": "assistant", "content": parts, "reasoning_content": "x"}) == [1]


def test_no_session_sees_another_s_but_a_fork_its_parent_s() -> None:
    hidden = HiddenHistory(10_000, 60)
    hidden.put("t", "s", chain_of("one"), SAID, 0.0)
    history = (USER, answer("one"))
    assert restored(hidden, "s", *history, tenant="other") == []
    assert restored(hidden, "stranger", *history) == []
    assert restored(hidden, "fork", *history, parent="s") == [1]
    assert restored(hidden, "fork of fork", *history, parent="fork") == [1]


def test_the_longest_unused_session_goes_first_when_a_tenant_is_over_its_bound() -> None:
    hidden = HiddenHistory(700, 60)
    for session in "abc":
        hidden.put("t", session, chain_of("one"), SAID, 0.0)
        restored(hidden, "a", USER)
    assert [session for session in "abc" if hidden.knows("t", session, None)] == ["a", "c"]
    assert hidden.num_bytes("t") <= 700
    hidden.put("u", "a", chain_of("one"), SAID, 0.0)
    assert hidden.knows("t", "a", None)


def test_what_is_not_used_for_its_time_is_forgotten() -> None:
    hidden = HiddenHistory(10_000, 60)
    hidden.put("t", "old", chain_of("one"), SAID, 0.0)
    hidden.put("t", "new", chain_of("one"), SAID, 50.0)
    assert restored(hidden, "new", USER, answer("one"), now=70.0) == [1]
    assert not hidden.knows("t", "old", None)
    assert restored(hidden, "new", USER, answer("one"), now=131.0) == []


def test_memory_returns_to_zero() -> None:
    hidden = HiddenHistory(10_000, 1)
    for n in range(5):
        hidden.put("t", "s", chain_of("one"), SAID * (n + 1), 0.0)
        hidden.put("t", "s", chain_of("one", str(n)), SAID, 0.0)
    hidden.put("t", "z", b"", SAID, 5.0)
    hidden.put("t", "z", b"", SAID, 5.0)
    assert not hidden.knows("t", "s", None)
    hidden.restore("t", "z", None, CHAT, [], 7.0)
    assert hidden.num_bytes("t") == 0
