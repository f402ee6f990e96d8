"""Laws of text that comes in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reply import TextBuffer

PIECES = st.lists(st.text(st.sampled_from("ab\r\n\0é\u2028\U0001f600\ud800"), max_size=4), max_size=20)


@given(PIECES)
def test_a_text_buffer_holds_its_pieces_joined_as_they_came(pieces: list[str]) -> None:
    text = TextBuffer()
    for piece in pieces:
        text.append(piece)
        assert text.latest == piece
    assert (str(text), text.num_chars) == ("".join(pieces), len("".join(pieces)))
    assert text == TextBuffer("".join(pieces))
