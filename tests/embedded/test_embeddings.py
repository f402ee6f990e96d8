import base64
import struct

import pytest

from gateway.embedded.answer import ids_of, tokens_of
from gateway.embedded.embeddings import embeddings_of, vector_of


def near(one: str, other: str) -> float:
    return sum(a * b for a, b in zip(vector_of(one, 256), vector_of(other, 256), strict=True))


def test_texts_with_common_words_are_near() -> None:
    assert near("the red fox runs", "the red fox sleeps") > near("the red fox runs", "a blue whale sings") + 0.3


@pytest.mark.parametrize("text", ["", "a", "!!", "the red fox"])
def test_a_vector_has_length_one_and_depends_on_the_text_alone(text: str) -> None:
    assert near(text, text) == pytest.approx(1)
    assert vector_of(text, 7) == vector_of(text, 7)


def test_texts_and_token_ids_are_embedded_alike_in_both_encodings() -> None:
    text = "the red fox"
    plain = embeddings_of({"input": [text, ids_of(tokens_of(text))]}, "m")
    first, second = (one["embedding"] for one in plain["data"])
    assert first == second
    packed = embeddings_of({"input": text, "encoding_format": "base64", "dimensions": 256}, "m")["data"][0]
    assert struct.unpack("<256f", base64.b64decode(packed["embedding"])) == pytest.approx(first)
    assert plain["usage"]["prompt_tokens"] == 2 * len(tokens_of(text))
