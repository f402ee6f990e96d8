"""Laws of the paths that hold no conversation."""

from __future__ import annotations

from gateway.core.reply import Reply
from gateway.dialects import BY_PATH, dialect_of, stored_answer_id


def test_the_path_of_a_stored_answer_names_it() -> None:
    paths = ("/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/responses", "/v1/models")
    assert [stored_answer_id(path) for path in paths] == ["resp_1", "resp_1", None, None]
    assert dialect_of("/v1/responses/resp_1") is BY_PATH["/v1/responses"]


def test_paths_without_a_conversation_hold_no_turns() -> None:
    names = {path: BY_PATH[path].name for path in BY_PATH if not BY_PATH[path].is_conversation}
    assert names == {
        "/v1/messages/count_tokens": "messages",
        "/v1/embeddings": "embeddings",
        "/tokenize": "plain",
        "/detokenize": "plain",
    }


def test_an_answer_without_a_conversation_is_whole_at_once() -> None:
    reply = Reply()
    BY_PATH["/v1/embeddings"].read({"object": "list", "model": "m", "data": []}, reply)
    assert (reply.model, reply.is_complete) == ("m", True)
