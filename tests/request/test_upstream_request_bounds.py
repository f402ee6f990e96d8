"""Laws of lowering an output bound to what fits."""

from __future__ import annotations

import pytest

from gateway.request.upstream_request import Bound, after_refusal, before_asking

VLLM = "This model's maximum context length is 16384 tokens. However, you requested 15000 output tokens and your prompt contains {} input tokens, for a total of 17000 tokens."  # noqa: E501
OLDER = "'max_tokens' or 'max_completion_tokens' is too large: 15000. This model's maximum context length is 16384 tokens and your request has {} input tokens (15000 > 16384 - 2013)."  # noqa: E501
SGLANG = "Requested token count exceeds the model's maximum context length of 16384 tokens. You requested a total of 17013 tokens: {} tokens from the input messages and 15000 tokens for the completion."  # noqa: E501
OPENAI = "This model's maximum context length is 16384 tokens. However, you requested 17013 tokens ({} in the messages, 15000 in the completion)."  # noqa: E501


@pytest.mark.parametrize("message", [VLLM, OLDER, SGLANG, OPENAI], ids=["vllm", "older vllm", "sglang", "openai"])
def test_a_counted_prompt_leaves_an_exact_bound(message: str) -> None:
    assert after_refusal(message.format(2013), 15_000, chars=0, may_omit=True) == Bound(16_384 - 2013)


@pytest.mark.parametrize(
    ("message", "asked_tokens"),
    [
        (VLLM.format(16_300), 15_000),  # no useful room
        (VLLM.format(20_000), 15_000),  # the prompt alone is too long
        (VLLM.format(2013), 100),  # the bound was not the trouble
        ("max_tokens must be at least 1, got 0.", 0),
        ("Unknown field: maximum", 15_000),
    ],
)
def test_other_refusals_stand(message: str, asked_tokens: int) -> None:
    assert after_refusal(message, asked_tokens, chars=0, may_omit=True) is None


def test_a_prompt_that_was_not_counted_leaves_no_bound_or_a_guess() -> None:
    message = VLLM.format("at least 1385")
    assert after_refusal(message, 15_000, chars=6_000, may_omit=True) == Bound(None)
    assert after_refusal(message, 15_000, chars=6_000, may_omit=False) == Bound(16_384 - 2_000)


def test_a_bound_is_changed_beforehand_only_when_it_cannot_fit() -> None:
    assert before_asking(32_000, chars=0, max_model_len=16_384, may_omit=True) == Bound(None)
    assert before_asking(16_000, chars=8 * 384, max_model_len=16_384, may_omit=True) == Bound(None)
    assert before_asking(16_000, chars=8 * 383, max_model_len=16_384, may_omit=True) is None
    assert before_asking(32_000, chars=6_000, max_model_len=16_384, may_omit=False) == Bound(14_384)
