"""How much of a long prompt is looked at."""

from __future__ import annotations

from policies.recognition.chains import Texts, message_links
from policies.recognition.prompts import LOOK_BYTES, LOOK_MESSAGES, SEARCHED_BYTES, Call, Prompt

KEY = b"key"
MARK = b"call_123456789"
SAID = b'["assistant",{"tool_calls":"%b"}]' % MARK
TOLD = b'["user",{"content":"%b"}]' % (b"a" * 2**20)


def prompt(messages: list[bytes], written: list[int]) -> Prompt:
    def write(at: int) -> bytes:
        written.append(at)
        return messages[at]

    texts = Texts(len(messages), write, begin=lambda at: messages[at][:20])
    return Prompt(Call(KEY, (), b"", texts), message_links(KEY, messages), 0.0)


def test_an_answer_is_looked_for_at_the_beginning_of_what_is_new() -> None:
    behind = LOOK_BYTES // len(TOLD) + 1
    for place, is_found in ((0, True), (2, True), (behind + 1, False)):
        messages, written = [TOLD] * 40, list[int]()
        messages[5 + place] = SAID
        asked = prompt(messages, written)
        assert (asked.carries((MARK,), 5) > 0) is is_found
        assert asked.holds((MARK,), range(5, 40)) is is_found
        assert len(written) <= behind + 1


def test_of_very_many_short_messages_few_are_written_to_find_an_answer() -> None:
    messages, written = [SAID] * 10_000, list[int]()
    asked = prompt(messages, written)
    assert asked.carries((b"another_call",), 3) < 0
    assert not asked.holds((b"another_call",), range(3, 10_000))
    assert asked.num_answers(3) == 1
    assert asked.latest_answer
    assert len(set(written)) <= LOOK_MESSAGES + 100


def test_no_more_is_searched_for_a_prompt_than_its_share() -> None:
    written = list[int]()
    asked = prompt([TOLD] * 200, written)
    for start in range(0, 200, 2):
        assert asked.carries((MARK,), start) < 0
    assert len(written) <= SEARCHED_BYTES // len(TOLD) + 1


def test_who_has_said_a_message_is_known_before_it_is_written() -> None:
    written = list[int]()
    asked = prompt([TOLD, SAID, SAID, TOLD, SAID, TOLD], written)
    assert asked.has_history
    assert [asked.num_answers(start) for start in range(6)] == [2, 2, 2, 1, 1, 1]
    assert not written
    for num in (3, 40, 100):
        turns = [SAID, SAID, TOLD] + [SAID] * num + [TOLD] * 2
        assert [prompt(turns, []).num_answers(start) for start in range(len(turns))] == [2] * 2 + [1] * (num + 3)
    assert asked.latest_answer == SAID
    assert written == [4]
