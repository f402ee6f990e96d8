"""Laws of text that comes in pieces, and of what is charged for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reply import MOST_CHARS, Reply, TextBuffer, ToolCall, ToolCalls

PIECES = st.lists(st.text(st.sampled_from("ab\r\n\0é\u2028\U0001f600\ud800"), max_size=4), max_size=20)


@given(PIECES)
def test_a_text_buffer_holds_its_pieces_joined_as_they_came(pieces: list[str]) -> None:
    text = TextBuffer()
    for piece in pieces:
        text.append(piece)
        assert text.latest == piece
    assert (str(text), text.num_chars) == ("".join(pieces), len("".join(pieces)))
    assert text == TextBuffer("".join(pieces))


@pytest.mark.parametrize(("letter", "num_bytes"), [("a", 1), ("é", 2), ("\U0001f600", 4)])
def test_text_that_no_engine_counted_is_charged_by_its_bytes(letter: str, num_bytes: int) -> None:
    reply = Reply(
        written=TextBuffer(letter * 4_000), tool_calls=ToolCalls(ToolCall, [ToolCall("c", "f", letter * 4_000)])
    )
    assert reply.charge.output_tokens == 2_000 * num_bytes


def test_text_that_is_longer_than_any_answer_is_charged_by_its_characters_and_not_looked_at() -> None:
    class Unread(TextBuffer):
        def __str__(self) -> str:
            raise AssertionError("it was read")

    assert Reply(written=Unread("a" * (MOST_CHARS + 1))).charge.output_tokens == MOST_CHARS // 4
