"""`/v1/embeddings` on the embedded engine: vectors of hashed words, so that texts with common words are near."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from typing import Any

from gateway.core.fields import Json, integer
from gateway.embedded.answer import tokens_from, tokens_of
from gateway.embedded.jobs import bad_request

USUAL_DIMENSIONS = 256
MOST_DIMENSIONS = 4_096
_WORD = re.compile(r"\w+")


def embeddings_of(body: Json, model: str) -> Json:
    """Return the answer to a request. Raises Refusal."""
    dimensions = integer(body, "dimensions") or USUAL_DIMENSIONS
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise bad_request(f"dimensions must be from 1 to {MOST_DIMENSIONS}.", "dimensions")
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise bad_request("encoding_format must be float or base64.", "encoding_format")
    texts = _texts(body.get("input"))
    vectors = [vector_of(text, dimensions) for text in texts]
    data = [
        {"object": "embedding", "index": index, "embedding": vector if encoding == "float" else _packed(vector)}
        for index, vector in enumerate(vectors)
    ]
    num_tokens = sum(len(tokens_of(text)) for text in texts)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _texts(given: Any) -> list[str]:
    is_list = isinstance(given, list)
    if isinstance(given, str) or (is_list and given and all(isinstance(one, int) for one in given)):
        given = [given]
    if not isinstance(given, list) or not given:
        raise bad_request("input must be a text, a list of token ids, or a list of these, and not empty.", "input")
    return [one if isinstance(one, str) else _text_of_ids(one) for one in given]


def _text_of_ids(ids: Any) -> str:
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise bad_request("input must be a text, a list of token ids, or a list of these.", "input")
    try:
        return b"".join(tokens_from(ids)).decode(errors="replace")
    except ValueError as error:
        raise bad_request(str(error), "input") from None


def vector_of(text: str, dimensions: int) -> list[float]:
    """Return a vector of length 1. Each word adds one to a dimension, or takes one from it."""
    vector = [0.0] * dimensions
    for word in _WORD.findall(text.lower()) or [text]:
        number = zlib.crc32(word.encode(errors="replace"))
        vector[(number >> 1) % dimensions] += 1.0 if number & 1 else -1.0
    length = math.sqrt(sum(x * x for x in vector))
    if length == 0.0:
        return [1.0, *vector[1:]]
    return [x / length for x in vector]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
