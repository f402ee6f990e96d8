"""Laws of probing the abilities of an engine."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.deadline import DEADLINE_S
from tests.engines.watched_engine import NewEngine, Watched


async def test_probes_find_out_order_cached_tokens_and_tools_by_four_requests(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    monitor = await watched.start(engine, probes=True)
    abilities = monitor.engines[0].abilities
    assert abilities.system_before_tools is True
    assert abilities.reports_cached_tokens is True
    assert abilities.takes_tools is True
    assert sorted(path for path, _, _ in engine.posts) == ["/tokenize", *["/v1/chat/completions"] * 3]
    assert {body["max_tokens"] for _, _, body in engine.chats} == {1}
    hinted = [headers["X-Vllm-Priority"] for _, headers, body in engine.chats if "tools" not in body]
    assert hinted == ["-1", "-1"]


async def test_questions_that_need_no_answer_to_another_one_are_asked_side_by_side(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine, offers_tools = new_engine("vllm-0.32"), asyncio.Event()

    async def until_tools_are_offered(body: Any) -> None:
        if "tools" in body:
            offers_tools.set()
        await offers_tools.wait()

    engine.before_chat = until_tools_are_offered
    async with asyncio.timeout(DEADLINE_S):
        await watched.start(engine, probes=True)
    assert len(engine.chats) == 3


@pytest.mark.parametrize(
    ("prompt", "is_first"),
    [
        ("turngatesystemmark {turngatetoolmark}", True),
        ("[turngatetoolmark] turngatesystemmark", False),
        ("?", None),
    ],
)
async def test_where_only_tokens_are_told_they_are_turned_back_into_text(
    watched: Watched, new_engine: NewEngine, prompt: str, is_first: bool | None
) -> None:
    engine = new_engine("sglang-0.5.23")
    engine.answers["/v1/tokenize"] = '{"tokens":[4088,2777],"count":2,"max_model_len":32768}'
    engine.answers["/v1/detokenize"] = orjson.dumps({"text": prompt}).decode()
    monitor = await watched.start(engine, kind="sglang", probes=True)
    assert monitor.engines[0].abilities.system_before_tools is is_first
    asked = {path: body for path, _, body in engine.posts}
    assert [path for path in asked if path.endswith("tokenize")] == ["/v1/tokenize", "/v1/detokenize"]
    assert asked["/v1/detokenize"]["tokens"] == [4088, 2777]


async def test_probes_can_be_switched_off(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine, probes=False)
    assert engine.posts == []


async def test_a_hint_that_the_probe_sees_refused_is_never_sent(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    engine.pages["/version"] = '{"version":"0.11.0"}'
    message = "Got priority -1 but Priority scheduling is not enabled."
    engine.refuse = lambda headers, body: (400, message) if body.get("priority") else None
    monitor = await watched.start(engine, probes=True)
    abilities = monitor.engines[0].abilities
    assert abilities.honours_priority is False
    assert abilities.refused_fields == {"priority"}
    assert ["priority" in body for _, _, body in engine.chats] == [True, False, False, False]


@pytest.mark.parametrize(
    ("status", "message", "takes"),
    [
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', False),
        (400, "something else", None),
        (503, "the tool is broken", None),
    ],
)
async def test_an_engine_that_refuses_tools_is_distinguished_from_one_that_fails(
    watched: Watched, new_engine: NewEngine, status: int, message: str, takes: bool | None
) -> None:
    engine = new_engine("vllm-0.32")
    engine.refuse = lambda headers, body: (status, message) if "tools" in body else None
    monitor = await watched.start(engine, probes=True)
    assert monitor.engines[0].abilities.takes_tools is takes


@pytest.mark.parametrize("cached", [0, None])
async def test_cached_tokens_that_never_come_are_not_reported(
    watched: Watched, new_engine: NewEngine, cached: int | None
) -> None:
    engine = new_engine("vllm-0.32")
    engine.cached_tokens = [cached]
    monitor = await watched.start(engine, probes=True)
    assert monitor.engines[0].abilities.reports_cached_tokens is False


async def test_an_engine_that_refuses_to_chat_is_up_all_the_same(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    engine.refuse = lambda headers, body: (404, "no chat here")
    monitor = await watched.start(engine, probes=True)
    assert monitor.engines[0].is_up
    assert monitor.engines[0].abilities.reports_cached_tokens is None
