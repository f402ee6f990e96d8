"""The wire formats by the path that speaks them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from gateway.dialects.base import Dialect

DIALECTS = {
    "/v1/chat/completions": "gateway.dialects.chat:Chat",
    "/v1/completions": "gateway.dialects.completions:Completions",
    "/v1/responses": "gateway.dialects.responses:Responses",
    "/v1/messages": "gateway.dialects.messages:Messages",
    "/v1/messages/count_tokens": "gateway.dialects.messages:CountTokens",
    "/v1/embeddings": "gateway.dialects.base:Embeddings",
    "/tokenize": "gateway.dialects.base:Tokenize",
    "/detokenize": "gateway.dialects.base:Detokenize",
}
"""Import paths. A format is one line here and one file: routes and the OpenAPI description follow from it."""


def _made(path: str) -> Dialect:
    module, _, name = path.partition(":")
    return cast(Dialect, getattr(import_module(module), name)())


BY_PATH: Mapping[str, Dialect] = {path: _made(name) for path, name in DIALECTS.items()}
_RESPONSES = BY_PATH["/v1/responses"]
OPENAI = Dialect()
"""For answers without a format of their own, such as the failure of an unknown path."""
STORED_ANSWERS = "/v1/responses/"
"""Beginning of the paths of stored answers. An id follows, and perhaps a verb."""


def dialect_of(path: str) -> Dialect:
    """Return the format of a path. A path without one of its own is that of a stored answer."""
    return BY_PATH.get(path, _RESPONSES)


def stored_answer_id(path: str) -> str | None:
    """Return the id of the stored answer that a path is about; None for any other path."""
    return path[len(STORED_ANSWERS) :].partition("/")[0] if path.startswith(STORED_ANSWERS) else None
