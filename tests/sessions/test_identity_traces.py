"""Recorded, unmodified agents are recognised, with and without their headers."""

from __future__ import annotations

import pytest

from benchmarks.clients.identity import (
    label,
    merges_across_tenants,
    pairs,
    replay,
    score_client,
    sent_beside,
    side_calls_as_turns,
)
from benchmarks.clients.trace_replay import TraceReplay
from policies.types import TurnKind
from tests.traces import TracedRequest, client_names, read_trace

LEAST_F1 = 0.98


@pytest.mark.parametrize("whole_file", [False, True])
@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize("client", client_names())
def test_requests_find_their_sessions_across_compactions_too(
    client: str, with_headers: bool, whole_file: bool
) -> None:
    row = score_client(client, with_headers=with_headers, whole_file=whole_file)
    assert row.score.f1 >= LEAST_F1, row
    assert row.score.merged == 0, row


@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize("client", client_names())
def test_requests_find_their_sessions_when_all_runs_come_again(client: str, with_headers: bool) -> None:
    requests = list(read_trace(client))
    seen = replay(requests, TraceReplay(with_headers=with_headers), with_headers=with_headers, times=2)
    clear = pairs([one for one in seen if one.request.number not in sent_beside(requests)])
    assert clear.f1 >= LEAST_F1, clear


@pytest.mark.parametrize("whole_file", [False, True])
@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize("client", client_names())
def test_without_the_text_of_answers_only_compacted_histories_are_split(
    client: str, with_headers: bool, whole_file: bool
) -> None:
    row = score_client(client, with_headers=with_headers, with_replies=False, whole_file=whole_file)
    compacts = client == "opencode" and not with_headers
    assert row.score.f1 >= (0.4 if compacts else LEAST_F1), row
    assert row.score.merged == 0, row


@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize("client", client_names())
def test_tenants_share_nothing(client: str, with_headers: bool) -> None:
    assert merges_across_tenants(client, with_headers=with_headers) == 0


@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize("client", client_names())
def test_titles_and_compactions_are_never_turns(client: str, with_headers: bool) -> None:
    assert side_calls_as_turns(client, with_headers=with_headers) == 0


def test_opencode_titles_are_side_requests_of_their_sessions_from_the_first_on() -> None:
    gateway = TraceReplay(with_headers=True)
    kinds = {gateway.send(request).kind for request in read_trace("opencode") if not request.body.get("tools")}
    assert kinds == {TurnKind.SIDE}


def test_without_headers_opencode_titles_have_the_session_of_the_turn_that_follows() -> None:
    gateway = TraceReplay(with_headers=False)
    seen = [(request, gateway.send(request)) for request in read_trace("opencode")]
    firsts = {label(request): one.session_id for request, one in reversed(seen) if request.body.get("tools")}
    titles = [(request, one) for request, one in seen if is_title(request)]
    assert [one.session_id for _, one in titles] == [firsts[label(request)] for request, _ in titles]
    known = [one.kind for request, one in titles if request.number > 2 and request.body["model"] == "lab-small"]
    assert set(known) == {TurnKind.SIDE}, "all after the first agents have shown what a title is"


def is_title(request: TracedRequest) -> bool:
    return "title generator" in str(request.body.get("messages", ""))[:200]


@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize("client", ["litellm", "mini-swe-agent", "openai-sdk", "langchain-openai"])
def test_all_runs_of_one_agent_are_a_family(client: str, with_headers: bool) -> None:
    gateway = TraceReplay(with_headers=with_headers)
    assert len({gateway.send(request).family_id for request in read_trace(client)}) == 1


@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize(
    ("client", "run"), [("opencode", "opencode"), ("codex", "codex"), ("qwen-code", "qwen-new")]
)
def test_agents_in_two_directories_are_two_sessions_of_a_family(client: str, run: str, with_headers: bool) -> None:
    gateway = TraceReplay(with_headers=with_headers)
    turns = [
        gateway.send(request) for request in read_trace(client) if request.run == run and request.body.get("tools")
    ]
    assert len({turn.session_id for turn in turns}) == 2
    assert len({turn.family_id for turn in turns}) == 1
    assert max(turn.turn_index for turn in turns) == 4


@pytest.mark.parametrize(("client", "run"), [("opencode", "opencode-sub"), ("codex", "codex-sub")])
def test_sub_agents_are_linked_to_their_parent(client: str, run: str) -> None:
    gateway = TraceReplay(with_headers=True)
    seen = [gateway.send(request) for request in read_trace(client) if request.run == run]
    (root,) = {one.session_id for one in seen if one.parent_id is None}
    assert {one.parent_id for one in seen if one.session_id != root} == {root}
    assert len({one.session_id for one in seen}) == 3
