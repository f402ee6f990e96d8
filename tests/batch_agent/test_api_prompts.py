from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from batch_agent import Usage, api, map_gather, scatter_gather, tree_reduce
from tests.batch_agent.scripted import Asked, Scripted, refusal, says


def echoing(asked: Asked) -> Any:
    """Answers in another order than asked; `bad` has an error of its own, `lost` no answer."""
    choices: list[dict[str, Any]] = [
        {"index": index, "text": f"<{prompt}>", "finish_reason": "stop"}
        for index, prompt in enumerate(asked.body["prompt"])
        if prompt != "lost"
    ]
    for choice in choices:
        if choice["text"] == "<bad>":
            choice |= {"text": "", "finish_reason": "error", "error": {"message": "too long"}}
    return web.json_response({"choices": choices[::-1], "usage": {}})


async def test_answers_are_found_by_their_index_in_one_request(gateway: Scripted) -> None:
    gateway.script = echoing
    results = await scatter_gather(["a", "bad", "lost", "b"], gateway=gateway.url, sampling={"max_tokens": 3})
    assert [result.output for result in results] == ["<a>", None, None, "<b>"]
    assert [result.error.message for result in results if result.error] == [
        "too long",
        "there is no answer to this prompt",
    ]
    (asked,) = gateway.asked
    assert asked.headers["X-Turngate-Prompt-Errors"] == "separate"
    assert (asked.path, asked.body["max_tokens"], asked.body["model"]) == ("/v1/completions", 3, "m")


async def test_the_tokens_of_a_list_are_parted_among_its_prompts_by_length(gateway: Scripted) -> None:
    usage = {"prompt_tokens": 101, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 64}}

    def counted(asked: Asked) -> Any:
        texts = ["", "x" * 30, "x" * 10]
        choices = [{"index": index, "text": text, "finish_reason": "stop"} for index, text in enumerate(texts)]
        choices[0]["error"] = {"message": "too long"}
        return {"choices": choices, "usage": usage}

    gateway.script = counted
    results = await scatter_gather(["p" * 99, "p" * 10, "p" * 30], gateway=gateway.url, model="m")
    assert [result.usage for result in results] == [Usage(), Usage(25, 16, 37), Usage(76, 48, 13)]


async def test_more_prompts_than_one_request_takes_are_several(
    gateway: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.script = echoing
    monkeypatch.setattr(api, "MOST_PROMPTS", 2)
    results = await scatter_gather(list("abcde"), gateway=gateway.url, model="m")
    assert [result.output for result in results] == [f"<{letter}>" for letter in "abcde"]
    assert [result.index for result in results] == list(range(5))
    assert len(gateway.asked) == 3


async def test_a_request_that_fails_is_an_error_of_each_of_its_prompts(gateway: Scripted) -> None:
    gateway.script = lambda asked: refusal(400, "no")
    results = await scatter_gather(["a", "b"], gateway=gateway.url, model="m")
    assert [result.error.type for result in results if result.error] == ["HTTPStatusError"] * 2


async def test_chat_gives_each_prompt_a_request_under_one_system_prompt(gateway: Scripted) -> None:
    gateway.script = lambda asked: says(f"<{asked.task}>")
    results = await scatter_gather(
        ["a", "{b}"], chat=True, system_prompt="Be brief.", gateway=gateway.url, model="m"
    )
    assert [result.output for result in results] == ["<a>", "<{b}>"]
    assert {asked.messages[0]["content"] for asked in gateway.asked} == {"Be brief."}
    with pytest.raises(ValueError, match="chat=True"):
        await scatter_gather(["a"], system_prompt="Be brief.", gateway=gateway.url)


async def test_a_template_is_mapped_over_inputs(gateway: Scripted) -> None:
    gateway.script = echoing
    results = await map_gather("{x}!", [{"x": 1}, {"x": 2}], gateway=gateway.url, model="m")
    assert [result.output for result in results] == ["<1!>", "<2!>"]


async def test_a_tree_reduces_level_by_level(gateway: Scripted) -> None:
    gateway.script = echoing
    text = await tree_reduce("({texts})", list("abcdefg"), fan_in=3, separator="+", gateway=gateway.url, model="m")
    assert text == "<(<(a+b+c)>+<(d+e+f)>+g)>"
    assert [len(asked.body["prompt"]) for asked in gateway.asked] == [2, 1]


async def test_a_tree_with_a_failed_part_is_an_error(gateway: Scripted) -> None:
    gateway.script = echoing
    with pytest.raises(RuntimeError, match="1 of 1 parts failed"):
        await tree_reduce("bad", ["a", "b"], gateway=gateway.url, model="m")


@pytest.mark.parametrize(("texts", "fan_in"), [([], 8), (["a"], 1)])
async def test_what_is_no_tree_is_refused(texts: list[str], fan_in: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - either of two
        await tree_reduce("{texts}", texts, fan_in=fan_in, gateway="http://127.0.0.1:9")


async def test_one_text_is_reduced_already() -> None:
    assert await tree_reduce("{texts}", ["a"], gateway="http://127.0.0.1:9") == "a"
