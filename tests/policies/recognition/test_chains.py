"""A growing prompt is written and hashed at its new end only, and its chain is the same as without memory."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.recognition import chains
from policies.recognition.chains import Beginnings, Texts, message_links, size_of
from policies.types import BLOCK_CHARS

KEY = b"key"
T = TypeVar("T")


def counted(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Return the result of all steps, and how many there were."""
    num = 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value, num
        num += 1


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


PARTS = st.lists(st.integers(0, 3 * BLOCK_CHARS), max_size=6)


@given(PARTS, st.integers(0, 6), st.sampled_from([1, 100, BLOCK_CHARS, 700]))
def test_a_chain_in_steps_is_the_chain(sizes: list[int], num_known: int, step_bytes: int) -> None:
    parts = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    whole = chains.block_chain(KEY, parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "STEP_BYTES", step_bytes)
        found, num_steps = counted(chains.block_chain_in_steps(KEY, parts, whole[:num_known]))
        digest, num_digested = counted(chains.digest_in_steps(KEY, *parts))
    assert found == whole
    assert digest == chains.digest(KEY, *parts)
    num_bytes = sum(sizes)
    assert num_steps >= (num_bytes - num_known * BLOCK_CHARS) / step_bytes, "a step is of a bounded text"
    assert num_digested >= num_bytes / step_bytes


def test_the_longest_known_beginning_of_a_prompt_is_found() -> None:
    beginnings, messages = Beginnings(8), [bytes([number]) * 100 for number in range(20)]
    assert beginnings.longest(texts(messages, [])) is None
    links = beginnings.links(KEY, texts(messages[:18], []))
    known = beginnings.longest(texts(messages, []))
    assert known is not None
    assert known.links == links
    assert beginnings.longest(messages) is None
