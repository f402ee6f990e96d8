"""Laws of taking volatile spans out of requests."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import orjson
import pytest

from gateway.config.settings import IdentitySettings
from gateway.core.transport import Request
from gateway.dialects import BY_PATH
from gateway.exchange import Exchange, Payload, Timings
from gateway.sessions.prefix_breaks import Rewrite, owner_of
from policies.recognition.prefix_breaks import Breaks

PATTERNS = IdentitySettings().volatile_patterns
LEARNED = IdentitySettings().volatile_learned
RULES = "\n".join(f"Rule {n}: do {n * 7919} things in order and say so." for n in range(60))
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def exchange(raw: bytes, path: str = CHAT) -> Exchange:
    payload = Payload(raw, orjson.loads(raw), engine_model="m")
    return Exchange("x1", cast(Request, None), BY_PATH[path], Timings(0.0), payload=payload)


def applied(rewrite: Rewrite, body: Any, path: str = CHAT) -> Exchange:
    made = exchange(body if isinstance(body, bytes) else orjson.dumps(body), path)
    made.payload = rewrite.apply(made)
    assert made.payload.body == orjson.loads(made.payload.raw)
    return made


def conversation(system: str, task: str = "Fix it.") -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": task}]}


def test_stripping_changes_no_other_byte() -> None:
    raw = (
        b'{ "temperature":1.00,"messages" :[ {"content":"x-amz-id: 7\\u00e9\\nBe \\u00e9xact\\/.",\n'
        b'"role":"system"},'
        b' {"role":"user","content":"hi \\u00e9"} ], "n":1e0 }'
    )
    assert applied(Rewrite(False, PATTERNS, ()), raw).payload.raw == raw.replace(b"x-amz-id: 7\\u00e9\\n", b"")


def test_a_pattern_matches_characters_not_bytes() -> None:
    made = applied(Rewrite(True, ["^.", "q$"], ()), conversation("\U0001f600\u00e9\nqq"))
    assert [message["content"] for message in made.payload.body["messages"]] == [
        "\u00e9\n",
        "Fix it.\n\n\U0001f600\nqq",
    ]


def test_moving_puts_the_span_behind_the_first_user_message() -> None:
    made = applied(Rewrite(True, PATTERNS, ()), conversation("x-amz-id: 7\nBe exact.\nx-anthropic-b: \U0001f600"))
    assert [message["content"] for message in made.payload.body["messages"]] == [
        "Be exact.\n",
        "Fix it.\n\nx-amz-id: 7\nx-anthropic-b: \U0001f600",
    ]
    assert "2 volatile spans of the system text, 31 bytes, moved" in made.notes[0]
    assert "x-amz" not in made.notes[0]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            CHAT,
            {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x-amz-a: 1\nBe."}]}]},
            {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be."}]}]},
        ),
        (RESPONSES, {"instructions": "Be.\nx-amz-a: 1", "input": "hi"}, {"instructions": "Be.\n", "input": "hi"}),
        (
            RESPONSES,
            {"input": [{"role": "developer", "content": "x-amz-a: 1\nBe."}, {"role": "user", "content": "hi"}]},
            {"input": [{"role": "developer", "content": "Be."}, {"role": "user", "content": "hi"}]},
        ),
        (
            MESSAGES,
            {
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
                    {"type": "text", "text": "Be."},
                ]
            },
            {"system": [{"type": "text", "text": " "}, {"type": "text", "text": "Be."}]},
        ),
        (MESSAGES, {"system": "x-amz-a: 1\nBe.", "messages": []}, {"system": "Be.", "messages": []}),
        ("/v1/completions", {"prompt": "x-amz-a: 1\nBe."}, {"prompt": "x-amz-a: 1\nBe."}),
    ],
)
def test_each_wire_format_has_its_system_text(path: str, body: Any, expected: Any) -> None:
    assert applied(Rewrite(False, PATTERNS, ()), body, path).payload.body == expected


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            RESPONSES,
            {"instructions": "x-amz-a: 1\nBe.", "input": "hi"},
            {"instructions": "Be.", "input": "hi\n\nx-amz-a: 1"},
        ),
        (
            MESSAGES,
            {
                "system": "x-amz-a: 1\nBe.",
                "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            },
            {
                "system": "Be.",
                "messages": [{"role": "user", "content": [{"type": "text", "text": "hi\n\nx-amz-a: 1"}]}],
            },
        ),
        # What a stored answer follows on from has it already.
        (
            RESPONSES,
            {"instructions": "x-amz-a: 1\nBe.", "input": "hi", "previous_response_id": "r"},
            {"instructions": "Be.", "input": "hi", "previous_response_id": "r"},
        ),
        # Nowhere to move it to.
        (MESSAGES, {"system": "x-amz-a: 1\nBe.", "messages": []}, {"system": "x-amz-a: 1\nBe.", "messages": []}),
    ],
)
def test_a_moved_span_goes_to_the_first_user_text(path: str, body: Any, expected: Any) -> None:
    assert applied(Rewrite(True, PATTERNS, ()), body, path).payload.body == expected


def test_a_request_without_such_text_is_the_very_same() -> None:
    made = exchange(orjson.dumps(conversation("Be exact. Mind x-amz-headers.")))
    raw, body = made.payload.raw, made.payload.body
    made.payload = Rewrite(True, PATTERNS, LEARNED).apply(made)
    assert made.payload.raw is raw
    assert made.payload.body is body
    assert made.notes == []


def test_learned_spans_go_with_those_of_the_patterns_and_stay_gone_in_later_turns() -> None:
    rewrite, breaks, noise = Rewrite(True, PATTERNS, LEARNED), Breaks(), Random(1)

    def begin() -> tuple[dict[str, Any], Exchange]:
        line = f"Working directory: /srv/{noise.getrandbits(64):x}/repo"
        system = f"x-anthropic-billing-header: {noise.random()}\nYou \u00e9dit.\n{line}\n{RULES}"
        body = conversation(system, f"Fix {noise.random()}.")
        made = applied(rewrite, body)
        script = made.dialect.script(made.payload.body)
        found = breaks.saw("f", owner_of(made), script.tools, script.system, script.messages)
        assert found is not None
        rewrite.learn(found)
        return body, made

    for _ in range(4):
        begin()
    body, first = begin()
    assert first.payload.body["messages"][0]["content"] == f"You \u00e9dit.\n{RULES}"
    assert "/repo" in first.payload.body["messages"][1]["content"]
    body["messages"] += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
    later = applied(rewrite, body)
    assert later.payload.body["messages"][:2] == first.payload.body["messages"]
    assert later.payload.body["messages"][2:] == body["messages"][2:]
