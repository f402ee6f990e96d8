"""A growing prompt is written and hashed at its new end only, and its chain is the same as without memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.recognition.chains import Beginnings, Texts, message_links, size_of

KEY = b"key"


def texts(messages: list[bytes], written: list[int]) -> Texts:
    """Messages that tell which of them are looked at, fingerprinted by their own text."""

    def write(at: int) -> bytes:
        written.append(at)
        return messages[at]

    found = Texts(len(messages), write)
    found.fingerprints = [hash(tuple(messages[: at + 1])) for at in range(len(messages))]
    return found


def test_only_the_new_end_of_a_prompt_is_looked_at() -> None:
    beginnings, messages = Beginnings(8), [bytes([number]) * 100 for number in range(20)]
    beginnings.links(KEY, texts(messages[:18], []))
    written: list[int] = []
    grown = texts(messages, written)
    assert beginnings.links(KEY, grown) == message_links(KEY, messages)
    assert size_of(grown) == 2000
    assert size_of(grown, 3) == 300
    assert written == [18, 19]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=30), st.integers(1, 4))
def test_a_chain_does_not_depend_on_what_is_remembered(prompts: list[tuple[int, int]], limit: int) -> None:
    beginnings = Beginnings(limit)
    for salt, count in prompts:
        messages = [b"shared", *(b"%d of %d" % (number, salt) for number in range(1, count))]
        assert beginnings.links(KEY, texts(messages, [])) == message_links(KEY, messages)


@given(st.lists(st.binary(max_size=3), max_size=6), st.integers(-7, 6), st.integers(-7, 6))
def test_texts_are_as_a_tuple(messages: list[bytes], start: int, stop: int) -> None:
    found = texts(messages, [])
    assert found == tuple(messages)
    assert found[start:stop] == tuple(messages)[start:stop]
    if messages:
        assert found[-1] == messages[-1]
