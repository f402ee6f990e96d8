"""The wire formats by the path that speaks them."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.dialects.base import Dialect
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.dialects.messages import CountTokens, Messages
from gateway.dialects.plain import Plain
from gateway.dialects.responses import Responses

BY_PATH: Mapping[str, Dialect] = {
    "/v1/chat/completions": Chat(),
    "/v1/completions": Completions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
    "/v1/messages/count_tokens": CountTokens(),
    "/v1/embeddings": Plain("embeddings"),
    "/tokenize": Plain(),
    "/detokenize": Plain(),
}
