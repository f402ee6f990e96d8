"""The recorded traces resolve to whole requests."""

import json

import pytest

from tests.traces import CONVERSATION_FIELDS, client_names, read_trace

MAX_RENAMED_BYTES = 250
"""By which the names of directories in a trace are shorter than the recorded ones."""


@pytest.mark.parametrize("client", client_names())
def test_every_request_resolves_to_a_whole_conversation(client: str) -> None:
    requests = list(read_trace(client))
    assert [request.number for request in requests] == sorted(request.number for request in requests)
    for request in requests:
        conversation = next(request.body[name] for name in CONVERSATION_FIELDS if name in request.body)
        assert conversation
        assert all(isinstance(item, dict) and not item.keys() & {"$ref", "$def"} for item in conversation)


@pytest.mark.parametrize("client", client_names())
def test_the_resolved_body_is_as_long_as_the_one_that_was_sent(client: str) -> None:
    for request in read_trace(client):
        resolved = json.dumps(request.body, ensure_ascii=False, separators=(",", ":")).encode()
        assert 0 <= request.body_bytes - len(resolved) < MAX_RENAMED_BYTES


def test_codex_names_its_threads_and_their_parents() -> None:
    nested = [request for request in read_trace("codex") if request.run == "codex-sub"]
    root = nested[0].header("thread-id")
    children = {request.header("thread-id") for request in nested} - {root}
    assert len(children) == 2
    for request in nested:
        is_child = request.header("thread-id") in children
        assert request.header("x-codex-parent-thread-id") == (root if is_child else None)
        assert request.body["prompt_cache_key"] == root
