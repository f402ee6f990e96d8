import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.embedded.answer import chain, ids_of, tokens_from, tokens_of

TEXTS = st.lists(st.sampled_from(["a", "word ", "\n", "<", "<|im_start|>", "<|im_end|>", "é", "漢字", "🙂"])).map(
    "".join
)


@given(text=TEXTS)
def test_a_text_comes_back_from_its_ids(text: str) -> None:
    assert b"".join(tokens_from(ids_of(tokens_of(text)))).decode() == text


def test_a_token_is_about_four_characters() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 20
    assert len(tokens_of(text)) == len(text) / 4


@given(prompt=TEXTS, answer=TEXTS, more=TEXTS)
def test_what_was_generated_is_cut_the_same_when_it_is_sent_back(prompt: str, answer: str, more: str) -> None:
    prompt += "<|im_start|>assistant\n"
    generated = [*tokens_of(prompt), *tokens_of(answer), *tokens_of("<|im_end|>")]
    next_prompt = tokens_of(f"{prompt}{answer}<|im_end|>{more}")
    assert next_prompt[: len(generated)] == generated
    known = chain(generated, 2)
    assert chain(next_prompt, 2)[: len(known)] == known


def test_texts_of_another_salt_share_no_block() -> None:
    tokens = tokens_of("some text that is long enough")
    assert not set(chain(tokens, 2, "a")) & set(chain(tokens, 2, "b"))


@pytest.mark.parametrize("number", [-1, 3, 255, 2**40])
def test_numbers_that_are_no_token_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="is no token"):
        tokens_from([number])
