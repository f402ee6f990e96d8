"""Header ladder, scoping and confidence, on hand-made exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest

from benchmarks.clients.trace_replay import HeadersOnly
from gateway.access.keys import Caller
from gateway.core.reply import MOST_CHARS, Reply, TextBuffer, ToolCall, ToolCalls
from gateway.dialects import BY_PATH
from gateway.dialects.base import Dialect, Script
from gateway.exchange import Exchange, Payload, Recognition, Timings
from gateway.sessions.claims import Claim, agent_name, read_claim
from gateway.sessions.identity import MAX_TOOL_BYTES, Identity
from policies.types import TurnKind

TOOLS = (b'{"name":"bash","parameters":{"command":"string"}}',)
SYSTEM = b"You are an agent. " * 60


@dataclass
class Desk:
    identity: Identity = field(default_factory=lambda: Identity(secret=b"secret"))
    num_requests: int = 0

    def ask(
        self,
        *messages: bytes,
        headers: Mapping[str, str] | None = None,
        tenant: str = "tenant",
        model: str = "model",
        tools: tuple[bytes, ...] = TOOLS,
        complete: bool = True,
        reply: Reply | None = None,
        **body: Any,
    ) -> Recognition:
        self.num_requests += 1
        request = HeadersOnly(headers or {})
        nothing = cast(Dialect, None)
        payload, caller = Payload(body=body, engine_model=model), Caller(tenant, may_prioritise=False)
        exchange = Exchange(str(self.num_requests), request, nothing, Timings(0.0), payload=payload, caller=caller)
        recognition = self.identity.recognise(exchange, Script(tools, SYSTEM, messages, bool(tools), ()), 0.0)
        exchange.reply = reply or Reply()
        self.identity.answered(exchange, complete, 1.0)
        return recognition


LADDER = [
    ({"x-turngate-session": "s"}, Claim("x-turngate-session", "s")),
    (
        {"x-turngate-session": "s", "x-turngate-parent": "p", "x-turngate-final": "true", "x-session-id": "o"},
        Claim("x-turngate-session", "s", "p", is_final=True),
    ),
    (
        {"x-dynamo-session-id": "s", "x-dynamo-parent-session-id": "p", "x-parent-session-id": "o"},
        Claim("x-dynamo-session-id", "s", "p"),
    ),
    (
        {"x-dynamo-session-id": "s", "x-dynamo-session-final": "1"},
        Claim("x-dynamo-session-id", "s", is_final=True),
    ),
    ({"x-session-id": "any"}, Claim("x-session-id", "any")),
    (
        {"x-session-id": "s", "x-session-affinity": "s", "session-id": "s", "x-parent-session-id": "p"},
        Claim("x-session-id", "s", "p", expects_tools=True),
    ),
    ({"x-opencode-session": "s"}, Claim("x-opencode-session", "s", expects_tools=True)),
    (
        {"thread-id": "child", "session-id": "root", "x-codex-parent-thread-id": "root"},
        Claim("thread-id", "child", "root", expects_tools=True),
    ),
    ({"session-id": "s"}, Claim("session-id", "s")),
    ({"x-claude-code-session-id": "s"}, Claim("x-claude-code-session-id", "s", expects_tools=True)),
    (
        {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
        Claim("x-claude-code-session-id", "s/a", "s", expects_tools=True),
    ),
    (
        {
            "x-claude-code-session-id": "s",
            "x-claude-code-agent-id": "a",
            "x-claude-code-parent-agent-id": "b",
        },
        Claim("x-claude-code-session-id", "s/a", "s/b", expects_tools=True),
    ),
    ({"x-turngate-session": "s" * 256, "x-session-id": "o"}, Claim("x-turngate-session")),
    ({"x-session-id": " "}, Claim()),
    ({}, Claim()),
]


@pytest.mark.parametrize(("headers", "claim"), LADDER)
def test_exactly_one_schema_speaks(headers: dict[str, str], claim: Claim) -> None:
    assert read_claim(headers) == claim


def test_header_and_chain_that_agree_are_sure() -> None:
    desk = Desk()
    named = {"x-session-id": "s"}
    first = desk.ask(b"u1", headers=named)
    second = desk.ask(b"u1", b"a1", b"t1", headers=named)
    unnamed = desk.ask(b"u1", b"a1", b"t1", b"a2", b"t2")
    assert first.confidence < second.confidence == 1.0
    assert (second.source, unnamed.source) == ("x-session-id", "chain")
    assert unnamed.confidence < 1.0
    assert {first.session_id, second.session_id, unnamed.session_id} == {first.session_id}


def test_a_session_id_never_opens_the_data_of_another_tenant() -> None:
    desk = Desk()
    one, other = (desk.ask(b"u1", headers={"x-session-id": "s"}, tenant=tenant) for tenant in ("a", "b"))
    assert one.session_id != other.session_id
    assert one.family_id != other.family_id
    assert not set(one.blocks) & set(other.blocks)
    assert desk.ask(b"u1", b"a1", b"t1", headers={"x-session-id": "s"}, tenant="b").session_id == other.session_id


def test_agents_on_two_models_under_one_id_are_two_sessions() -> None:
    desk = Desk()
    one, other = (desk.ask(b"u1", headers={"x-session-id": "s"}, model=model) for model in ("large", "other"))
    assert one.session_id != other.session_id


def test_ids_are_hashed_and_the_same_on_every_gateway_with_the_same_secret() -> None:
    one, other = (Desk().ask(b"u1", headers={"x-session-id": "ses_secret"}) for _ in range(2))
    assert (one.session_id, one.family_id) == (other.session_id, other.family_id)
    assert "secret" not in one.session_id
    apart = Desk(Identity(secret=b"another")).ask(b"u1", headers={"x-session-id": "ses_secret"})
    assert apart.session_id != one.session_id


def test_a_child_names_the_session_of_its_parent() -> None:
    desk = Desk()
    parent = desk.ask(b"u1", headers={"x-session-id": "p", "x-session-affinity": "p"})
    child = desk.ask(
        b"u2",
        headers={"x-session-id": "c", "x-session-affinity": "c", "x-parent-session-id": "p"},
        tools=TOOLS * 2,
    )
    assert child.parent_id == parent.session_id != child.session_id


def test_a_cache_key_is_a_family_and_not_a_session() -> None:
    desk = Desk()
    root = desk.ask(b"u1", prompt_cache_key="root")
    child = desk.ask(b"u2", tools=(b"other tool",), prompt_cache_key="root")
    assert root.session_id != child.session_id
    assert root.family_id == child.family_id
    assert child.source == "prompt_cache_key"


@pytest.mark.parametrize("sides", ["before", "after"])
def test_a_title_on_a_small_model_is_a_side_request_of_its_session(sides: str) -> None:
    desk = Desk()
    headers = {"x-session-id": "s", "x-session-affinity": "s"}
    if sides == "after":
        main = desk.ask(b"u1", headers=headers)
    title = desk.ask(b"title please", headers=headers, tools=(), model="small")
    if sides == "before":
        main = desk.ask(b"u1", headers=headers)
    assert (title.kind, main.kind) == (TurnKind.SIDE, TurnKind.AGENT)
    assert title.session_id == main.session_id


def test_the_answer_tells_identical_siblings_apart() -> None:
    desk = Desk()
    replies = [Reply(tool_calls=ToolCalls(ToolCall, [ToolCall(f"call_{n:08}", "bash", "{}")])) for n in range(4)]
    siblings = [desk.ask(b"u1", reply=reply).session_id for reply in replies]
    assert len(set(siblings)) == 4
    for n in (2, 0, 3, 1):
        assert desk.ask(b"u1", b'["assistant",{"id":"call_%08d"}]' % n, b"t").session_id == siblings[n]


def test_a_failed_call_that_comes_again_is_a_retry() -> None:
    desk = Desk()
    first = desk.ask(b"u1", complete=False)
    again = desk.ask(b"u1")
    said = desk.ask(b"u1", headers={"x-stainless-retry-count": "1"})
    assert [one.is_retry for one in (first, again, said)] == [False, True, True]
    assert {first.session_id, again.session_id, said.session_id} == {first.session_id}


@pytest.mark.parametrize("agent", ["opencode/1.18.33 ai-sdk/3", "codex_exec/0.169.0 (Linux)", "claude-cli/2.0.1"])
def test_an_agent_known_by_its_user_agent_alone_has_no_turn_without_tools(agent: str) -> None:
    assert Desk().ask(b"title please", headers={"user-agent": agent}, tools=()).kind is TurnKind.SIDE
    assert Desk().ask(b"a chat", headers={"user-agent": "OpenAI/Python 2.9.0"}, tools=()).kind is TurnKind.SINGLE


@pytest.mark.parametrize(
    ("headers", "last", "remaining"),
    [
        ({"x-turngate-remaining-turns": "3"}, b"u", 3),
        ({"x-turngate-remaining-turns": "-3"}, b"u", None),
        ({"x-turngate-remaining-turns": "many"}, b"u", None),
        ({}, b'["assistant",{"content":"CRITICAL - MAXIMUM STEPS REACHED ..."}]', 0),
        ({}, b'["user",{"content":"MAXIMUM STEPS REACHED"}]', None),
    ],
)
def test_remaining_turns_are_declared_by_header_or_by_opencode(
    headers: dict[str, str], last: bytes, remaining: int | None
) -> None:
    assert Desk().ask(b"u1", last, headers=headers).remaining_turns == remaining


def test_an_exchange_may_be_told_as_answered_twice_or_never() -> None:
    desk = Desk()
    desk.ask(b"u1", complete=False)
    exchange = Exchange("1", HeadersOnly({}), cast(Dialect, None), Timings(0.0))
    desk.identity.answered(exchange, True, 2.0)
    assert desk.ask(b"u1").is_retry


def test_an_answer_longer_than_any_model_writes_is_not_looked_at() -> None:
    class Unread(TextBuffer):
        def __str__(self) -> str:
            raise AssertionError("it was read")

    desk = Desk()
    desk.ask(b"u1", reply=Reply(written=Unread("a" * (MOST_CHARS + 1))))
    assert desk.ask(b"u1", b"a1", b"u2").turn_index == 1


def test_the_tools_that_are_remembered_are_bounded_in_bytes() -> None:
    identity = Identity(secret=b"secret")
    for number in range(40):
        name = f"{number}" + "n" * 2**20
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"function": {"name": name}}]}
        raw = orjson.dumps(body)
        exchange = Exchange(
            "1", HeadersOnly({}), BY_PATH["/v1/chat/completions"], Timings(0.0), payload=Payload(raw, body)
        )
        assert identity.script(exchange).tool_names == (name,)
        assert identity.script(exchange).tool_names == (name,)
        assert 0 < sum(tools.size_bytes for tools in identity._tools._kept.values()) <= MAX_TOOL_BYTES


def test_the_head_of_a_first_prompt_is_its_tools_and_system_text_and_equal_for_siblings() -> None:
    desk = Desk()
    first, sibling = desk.ask(USER), desk.ask(b'["user","Another task."]')
    assert first.head is not None
    assert first.head.chars == len(SYSTEM) + len(TOOLS[0])
    assert sibling.head == first.head
    other = desk.ask(b'["user","A third task."]', tools=(*TOOLS, *TOOLS))
    assert other.head is not None
    assert other.head != first.head
    following = desk.ask(USER, *ANSWERED)
    assert (following.session_id, following.head) == (first.session_id, None)


# ---- sessions that begin with a history: the gateway was restarted

USER, ANSWERED = b'["user",{"content":"go"}]', (b'["assistant",{"content":"a"}]', b'["tool",{"content":"r"}]')


def test_a_session_that_begins_with_a_history_says_so_once() -> None:
    desk = Desk()
    first = desk.ask(USER, *ANSWERED, *ANSWERED)
    assert first.history is not None
    assert (first.history.num_turns, first.turn_index) == (2, 0)
    assert first.history.last_chars == first.chars - len(b"".join(ANSWERED))
    following = desk.ask(USER, *ANSWERED, *ANSWERED, *ANSWERED)
    assert (following.session_id, following.history) == (first.session_id, None)


def test_a_task_a_fork_a_sibling_and_a_side_request_have_no_history() -> None:
    desk = Desk()
    assert desk.ask(USER).history is None
    fork = desk.ask(USER, b'["assistant",{"content":"another"}]', b'["user",{}]')
    assert fork.history is None
    desk.ask(USER + b"2", *ANSWERED)
    assert desk.ask(USER + b"2", *ANSWERED).history is None
    title = desk.ask(USER + b"3", *ANSWERED, headers={"thread-id": "t"}, tools=())
    assert (title.kind, title.history) == (TurnKind.SIDE, None)


# ---- names for people


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/3 runtime/node"}, "opencode"),
        ({"user-agent": "codex_exec/0.169.0 (Linux; x86_64)"}, "codex_exec"),
        ({"user-agent": "claude-cli/2.0.1 (external, cli)"}, "claude-cli"),
        ({"user-agent": "AsyncOpenAI/Python 2.9.0"}, "AsyncOpenAI/Python"),
        ({"user-agent": "curl"}, "curl"),
        ({"user-agent": "1/2"}, "1"),
        ({"user-agent": ""}, ""),
        ({}, ""),
        ({"user-agent": "curl/8", "x-turngate-agent": " reviewer of pull requests "}, "reviewer of pull requests"),
        ({"user-agent": "curl/8", "x-turngate-agent": ""}, ""),
        ({"x-turngate-agent": "\x1b[2J<b>\udce9"}, "\\u001b[2J<b>\\udce9"),
        ({"x-turngate-agent": "n" * 100}, "n" * 61 + "..."),
        ({"user-agent": "n" * 10_000}, "n" * 61 + "..."),
    ],
)
def test_an_agent_is_named_as_it_says_else_by_its_product_without_version(
    headers: dict[str, str], name: str
) -> None:
    assert agent_name(headers) == name
    assert Desk().ask(b"u1", headers=headers).agent == name


def test_the_client_s_own_id_stays_whole_beside_its_hash_which_differs_between_tenants() -> None:
    desk, named = Desk(), {"x-session-id": "i" * 255}
    first, other = (desk.ask(b"u1", headers=named, tenant=tenant) for tenant in ("a", "b"))
    assert first.client_session == other.client_session == "i" * 255
    assert first.client_hash == first.session_id != other.client_hash
    side = desk.ask(b"another", headers=named, tenant="a")
    assert side.client_hash == first.client_hash != side.session_id
    assert desk.ask(b"u1", headers={"x-session-id": "i" * 256}).client_session is None
    assert desk.ask(b"u1").client_session is None


def test_a_client_s_id_is_one_visible_line() -> None:
    assert Desk().ask(b"u1", headers={"x-session-id": "a\x1b[2J"}).client_session == "a\\u001b[2J"
