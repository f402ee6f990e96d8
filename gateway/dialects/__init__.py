"""The wire formats by the path that speaks them."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.dialects.base import Dialect
from gateway.dialects.chat import Chat
from gateway.dialects.completions import PATH as COMPLETIONS
from gateway.dialects.completions import Completions
from gateway.dialects.messages import CountTokens, Messages
from gateway.dialects.responses import Responses


class Embeddings(Dialect):
    """`/v1/embeddings`, which has no conversation."""

    name = "embeddings"


OPENAI = Dialect()
"""For answers without a format of their own, such as the failure of an unknown path."""
_RESPONSES = Responses()
BY_PATH: Mapping[str, Dialect] = {
    "/v1/chat/completions": Chat(),
    COMPLETIONS: Completions(),
    "/v1/responses": _RESPONSES,
    "/v1/messages": Messages(),
    "/v1/messages/count_tokens": CountTokens(),
    "/v1/embeddings": Embeddings(),
    "/tokenize": OPENAI,
    "/detokenize": OPENAI,
}
STORED_ANSWERS = "/v1/responses/"
"""Beginning of the paths of stored answers. An id follows, and perhaps a verb."""


def dialect_of(path: str) -> Dialect:
    """Return the format of a path. A path without one of its own is that of a stored answer."""
    return BY_PATH.get(path, _RESPONSES)


def stored_answer_id(path: str) -> str | None:
    """Return the id of the stored answer that a path is about; None for any other path."""
    return path[len(STORED_ANSWERS) :].partition("/")[0] if path.startswith(STORED_ANSWERS) else None
