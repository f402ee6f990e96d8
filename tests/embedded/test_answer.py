from hypothesis import given
from hypothesis import strategies as st

from gateway.embedded.answer import ScriptedAnswer, answer_to, call_text


def test_filler_depends_on_the_prompt_alone() -> None:
    one, same, other = (answer_to(prompt, None, 1000, False) for prompt in (b"one", b"one", b"other"))
    assert one == same
    assert one.tokens != other.tokens
    assert one.finish_reason == "stop"


def test_filler_is_as_long_as_asked_when_the_end_is_ignored() -> None:
    answer = answer_to(b"prompt", None, 77, True)
    assert (len(answer.tokens), answer.finish_reason) == (77, "length")


def test_a_script_can_ask_for_filler_of_a_length() -> None:
    answer = answer_to(b"prompt", ScriptedAnswer("", 40, ()), 100, False)
    assert (len(answer.tokens), answer.finish_reason) == (41, "stop")  # and the end of the turn


def test_an_answer_is_cut_at_its_bound() -> None:
    answer = answer_to(b"prompt", ScriptedAnswer("one two three four", None, ()), 2, False)
    assert (len(answer.tokens), answer.finish_reason) == (2, "length")
    assert "".join(delta.text for delta in answer.deltas) == "one two "


TEXT = st.text(st.sampled_from('ab \n<"é漢🙂{}'), max_size=30)


@given(content=TEXT, calls=st.lists(st.tuples(st.sampled_from(["ls", "bash"]), TEXT), max_size=3))
def test_deltas_tell_content_and_calls_in_order_as_the_tokens_come(
    content: str, calls: list[tuple[str, str]]
) -> None:
    answer = answer_to(
        b"prompt", ScriptedAnswer(content, None, tuple((*call, None) for call in calls)), 10_000, False
    )
    assert "".join(d.text for d in answer.deltas if d.call_index is None) == content
    heads = [(d.call_index, d.call_name) for d in answer.deltas if d.call_name is not None]
    assert heads == [(index, name) for index, (name, _) in enumerate(calls)]
    for index, (_, arguments) in enumerate(calls):
        own = [d for d in answer.deltas if d.call_index == index]
        assert own[0].call_name is not None
        assert "".join(d.text for d in own) == arguments
    times = [d.at_token for d in answer.deltas]
    assert times == sorted(times)
    assert not times or times[-1] <= len(answer.tokens)
    generated = content + "".join(call_text(*call) for call in calls) + "<|im_end|>"
    assert b"".join(answer.tokens).decode() == generated
