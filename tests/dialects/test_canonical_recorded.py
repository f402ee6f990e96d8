"""The canonical form against recorded requests of real agents."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from gateway.core.slices import finished
from gateway.dialects import BY_PATH, canonical
from gateway.dialects.base import Script
from tests.traces import TracedRequest, client_names, read_trace

BREAKS = ("compact", "~ctx", "qwen~cut", "qwen~eof")
"""Runs in which the client itself rewrites its history: OpenCode's compaction, Qwen's resume message."""


def key(request: TracedRequest, script: Script) -> tuple[object, ...]:
    """The session by its header, else by its first message; and apart from its title requests by its tools."""
    headers = ("x-session-id", "x-opencode-session", "thread-id")
    named = next((value for name in headers if (value := request.header(name))), None)
    return (request.run, named or script.messages[:1], script.tools)


@pytest.mark.parametrize("client", client_names())
def test_an_agents_earlier_messages_stay_equal_from_turn_to_turn(client: str) -> None:
    sessions: dict[tuple[object, ...], list[Script]] = defaultdict(list)
    for request in read_trace(client):
        dialect = BY_PATH[request.path]
        assert dialect.check(request.body) is None
        script = dialect.script(request.body)
        if not any(mark in request.run for mark in BREAKS):
            sessions[key(request, script)].append(script)
    num_turns = 0
    for scripts in sessions.values():
        for earlier, later in pairwise(scripts):
            assert later.messages[: len(earlier.messages)] == earlier.messages
            assert later.system == earlier.system
            num_turns += len(later.messages) > len(earlier.messages)
    assert num_turns >= 8  # of the shortest trace


@pytest.mark.parametrize("client", client_names())
def test_a_request_that_is_read_in_steps_reads_as_at_once(client: str) -> None:
    for request in list(read_trace(client))[::5]:
        dialect = BY_PATH[request.path]
        tools = finished(canonical.tools_in_steps(dialect.definitions(request.body)))
        assert finished(dialect.script_in_steps(request.body, tools)) == dialect.script(request.body)


@pytest.mark.parametrize("client", client_names())
def test_agents_offer_tools_and_their_names_are_known(client: str) -> None:
    scripts = [BY_PATH[request.path].script(request.body) for request in read_trace(client)]
    offering = [script for script in scripts if script.offers_tools]
    assert len(offering) > len(scripts) / 2
    assert all(len(script.tool_names) >= len(script.tools) and script.system for script in offering)
