"""Laws of the repairs: they touch what an engine refuses, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gateway.engines.base import CHAT, MESSAGES, NO_REPAIR, RESPONSES, Abilities, EngineAdapter, typed_messages
from gateway.engines.dynamo import Dynamo
from gateway.engines.openai import OpenAI
from gateway.engines.sglang import SGLang
from gateway.engines.vllm import Vllm

SAID = {"role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
ASKED = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"}
LS = {"type": "function", "name": "ls", "parameters": {}}
PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}}
FREE = {"type": "custom", "name": "note", "format": {"type": "text"}}
SEARCH = {"type": "web_search"}


def test_only_an_assistants_list_of_parts_is_given_its_type() -> None:
    plain = {"role": "assistant", "content": "Hello"}
    body = {"input": [ASKED, SAID, CALL, plain, {"type": "message", **SAID}]}
    repair = typed_messages(RESPONSES, body)
    assert repair.body == {"input": [ASKED, {"type": "message", **SAID}, CALL, plain, {"type": "message", **SAID}]}
    assert repair.notes


@pytest.mark.parametrize("items", ["Hi", [ASKED, CALL], [], None, [7, "x", None]])
def test_input_that_engines_take_stays_as_it_is(items: Any) -> None:
    assert typed_messages(RESPONSES, {"input": items}) == NO_REPAIR


def test_vllm_gets_custom_tools_without_their_grammar() -> None:
    repair = Vllm().repaired(RESPONSES, {"input": "Hi", "tools": [LS, PATCH, FREE, SEARCH]}, Abilities())
    assert repair.body == {"tools": [LS, {**PATCH, "format": {"type": "text"}}, FREE, SEARCH]}
    assert repair.notes == ("tools: custom tools lost their grammar",)


def test_dynamo_gets_only_the_tool_types_that_it_has() -> None:
    repair = Dynamo().repaired(RESPONSES, {"input": [SAID], "tools": [LS, PATCH, SEARCH]}, Abilities())
    assert repair.body == {"input": [{"type": "message", **SAID}], "tools": [LS]}
    assert repair.notes[1] == "tools: custom, web_search left out"


@pytest.mark.parametrize("engine", [OpenAI(), Vllm(), Dynamo()])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSES, {"input": [ASKED, CALL], "tools": [LS]}),
        (RESPONSES, {"input": "Hi", "tools": "wrong"}),
        (CHAT, {"messages": [SAID], "tools": [SEARCH, PATCH]}),
    ],
)
def test_nothing_is_repaired_that_is_not_broken(engine: EngineAdapter, path: str, body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    assert engine.repaired(path, body, Abilities()) == NO_REPAIR
    assert body == before


@pytest.mark.parametrize("kind", ["enabled", "adaptive"])
def test_sglang_without_a_reasoning_parser_gets_no_wish_for_thoughts(kind: str) -> None:
    body = {"messages": [], "thinking": {"type": kind}}
    without = Abilities(parses_reasoning=False)
    assert SGLang().repaired(MESSAGES, body, without).body == {"thinking": {"type": "disabled"}}
    assert SGLang().repaired(CHAT, body, without) == NO_REPAIR
    for parses in (True, None):
        assert SGLang().repaired(MESSAGES, body, Abilities(parses_reasoning=parses)) == NO_REPAIR
    for left in ({}, {"thinking": {"type": "disabled"}}, {"thinking": None}):
        assert SGLang().repaired(MESSAGES, left, without) == NO_REPAIR
