"""The usage of an answer is whole, whatever events of its stream name parts of it."""

from __future__ import annotations

import pytest

from gateway.core.reply import Reply
from gateway.dialects import BY_PATH
from gateway.engines.base import MESSAGES, Abilities, Outgoing, OutgoingRequest
from gateway.engines.sglang import SGLang
from gateway.request.stream_relay import StreamRelay, read_nothing
from gateway.request.upstream_request import Call
from policies.types import Hints, Usage
from tests.engines.recorded import text


def usage_of_stream(name: str, added: Outgoing) -> Usage:
    """As read from a stream that SGLang 0.5.23 sent for `/v1/messages`."""
    call = Call("POST", "", (), None, added)
    reply = Reply()
    read_nothing(reply, call)
    relay = StreamRelay(BY_PATH[MESSAGES], SGLang(), reply, call)
    relay.feed(text("sglang-0.5.23", name).encode())
    return reply.usage


def added(is_reported: bool) -> Outgoing:
    abilities = Abilities(reports_cached_tokens=is_reported)
    return SGLang().outgoing(OutgoingRequest(MESSAGES, {}, Hints()), abilities)


@pytest.mark.parametrize(
    ("name", "usage"), [("messages-first.sse", Usage(671, 0, 4)), ("messages-again.sse", Usage(671, 670, 4))]
)
def test_sglang_names_the_prompt_where_a_stream_of_messages_begins_and_the_answer_where_it_ends(
    name: str, usage: Usage
) -> None:
    assert usage_of_stream(name, added(is_reported=True)) == usage


def test_cached_tokens_that_a_server_does_not_report_are_not_known() -> None:
    assert usage_of_stream("messages-first.sse", added(is_reported=False)) == Usage(671, None, 4)
