"""Laws of the paths that hold no conversation."""

from __future__ import annotations

from gateway.core.reply import Reply
from gateway.dialects import BY_PATH


def test_they_are_no_turns() -> None:
    names = {path: BY_PATH[path].name for path in BY_PATH if not BY_PATH[path].is_conversation}
    assert names == {
        "/v1/messages/count_tokens": "messages",
        "/v1/embeddings": "embeddings",
        "/tokenize": "plain",
        "/detokenize": "plain",
    }


def test_an_answer_is_whole_when_it_is_there() -> None:
    reply = Reply()
    BY_PATH["/v1/embeddings"].read({"object": "list", "model": "m", "data": []}, reply)
    assert (reply.model, reply.is_complete) == ("m", True)
