"""The official openai SDK parses the same through the gateway as straight from a real engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import Gateway, engine_url, gateway
from tests.real.rewrites import forced, reply_key
from tests.real.scripts import Answer, Call, answer_to, hermes
from tests.real.sglang import Sglang
from tests.real.vllm import Vllm

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": "bash", "description": "Runs a command", "parameters": PARAMETERS}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS: Any = [{"type": "function", **FUNCTION}]
ASK: Any = [{"role": "user", "content": "What is in this directory?"}]
CALL = answer_to({}, Call("bash", {"command": "ls -l"}))
VERDICT = Answer('{"verdict":"yes","word":"a"}')
VOLATILE = frozenset(
    {"id", "call_id", "item_id", "created", "created_at", "completed_at", "obfuscation"}
    | {"prompt_tokens_details", "input_tokens_details", "system_fingerprint", "sequence_number"}
)
"""What an engine makes for each answer alone, what its cache says, and the fingerprint, which vLLM puts into the
last event of a stream: the usage, where only the gateway asked for that. The number of the last event counts the
deltas before it, into which vLLM cuts equal texts differently."""


class Verdict(BaseModel):
    """Its schema leaves a random model no choice."""

    verdict: Literal["yes"]
    word: Literal["a"]


@dataclass(frozen=True)
class Case:
    """One engine, straight and through the gateway."""

    straight_url: str
    gateway: Gateway
    model: str
    says: Callable[[Answer], dict[str, Any]]
    """Body fields that make the engine answer this."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_vllm(vllm_process: Vllm) -> AsyncIterator[Case]:
    def says(answer: Answer) -> dict[str, Any]:
        scripted = {"structured_outputs": {"choice": [hermes(answer)]}} if answer.calls else {}
        return scripted | {"temperature": 0}

    async with gateway(engine_url("vllm", vllm_process.base_url)) as front:
        yield Case(vllm_process.base_url, front, vllm_process.model, says)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_sglang(sglang_process: Sglang) -> AsyncIterator[Case]:
    def says(answer: Answer) -> dict[str, Any]:
        return forced(answer, "sglang") if answer.calls else {"temperature": 0}

    async with gateway(engine_url("sglang", sglang_process.base_url)) as front:
        yield Case(sglang_process.base_url, front, sglang_process.model, says)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_dynamo() -> AsyncIterator[Case]:
    def says(answer: Answer) -> dict[str, Any]:
        return {"nvext": {"annotations": [f"output_replay_id:{reply_key(answer)}"]}}

    async with (
        dynamo_stack(DynamoOptions(num_workers=2, speedup_ratio=1000, replies=(CALL, VERDICT))) as stack,
        gateway(engine_url("dynamo", stack.base_url)) as front,
    ):
        yield Case(stack.base_url, front, stack.model, says)


@pytest.fixture(params=["vllm", "sglang", "dynamo"])
def case(request: pytest.FixtureRequest) -> Case:
    asked = [request.getfixturevalue(name) for name in ("api", "asked")]
    if request.param == "sglang" and asked == ["responses", TOOLS]:
        pytest.skip("SGLang takes no grammar there, so a model with random weights cannot be scripted")
    found: Case = request.getfixturevalue(f"on_{request.param}")
    return found


def lasting(value: Any) -> Any:
    """What two answers of one meaning have in common."""
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in VOLATILE}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


TOOLS = {"chat": {"messages": ASK, "tools": CHAT_TOOLS}, "responses": {"input": ASK, "tools": RESPONSES_TOOLS}}
SCHEMA = {
    "chat": {"messages": ASK, "response_format": Verdict},
    "responses": {"input": ASK, "text_format": Verdict},
}
LIMIT = {"chat": "max_tokens", "responses": "max_output_tokens"}


def ask(client: OpenAI, api: str, how: str, fields: dict[str, Any]) -> Any:
    endpoint: Any = client.chat.completions if api == "chat" else client.responses
    if how == "events":
        return joined(list(endpoint.create(stream=True, **fields)))
    if how != "stream":
        return getattr(endpoint, how)(**fields).to_dict(warnings=False)
    with endpoint.stream(**fields) as stream:
        stream.until_done()
        final = stream.get_final_completion() if api == "chat" else stream.get_final_response()
    return final.to_dict(warnings=False)


async def ask_async(client: AsyncOpenAI, api: str, how: str, fields: dict[str, Any]) -> Any:
    endpoint: Any = client.chat.completions if api == "chat" else client.responses
    if how == "events":
        return joined([event async for event in await endpoint.create(stream=True, **fields)])
    if how != "stream":
        return (await getattr(endpoint, how)(**fields)).to_dict(warnings=False)
    async with endpoint.stream(**fields) as stream:
        await stream.until_done()
        final = await (stream.get_final_completion() if api == "chat" else stream.get_final_response())
    return final.to_dict(warnings=False)


def joined(events: list[Any]) -> dict[str, Any]:
    """A stream without its timing, which decides how many tokens share an event."""
    if not hasattr(events[0], "choices"):
        types = [kind for kind, _ in groupby(event.type for event in events)]
        return {"types": types, "last": events[-1].to_dict()}
    deltas = [choice.delta for event in events for choice in event.choices]
    calls = [call.function for delta in deltas for call in delta.tool_calls or []]
    return {
        "text": "".join(delta.content or "" for delta in deltas),
        "names": [call.name for call in calls if call.name],
        "arguments": "".join(call.arguments or "" for call in calls),
        "finish_reasons": [choice.finish_reason for event in events for choice in event.choices][-1:],
        "num_without_choices": sum(not event.choices for event in events),
    }


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # SGLang's metadata has a list
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    ("how", "asked", "answer"),
    [
        ("create", TOOLS, CALL),
        ("events", TOOLS, CALL),
        ("parse", SCHEMA, VERDICT),
        ("stream", SCHEMA, VERDICT),
    ],
    ids=["tools", "streamed tools", "json schema", "streamed json schema"],
)
async def test_the_sdk_parses_the_same_through_the_gateway(
    case: Case, api: str, how: str, asked: dict[str, dict[str, Any]], answer: Answer
) -> None:
    fields = asked[api] | {"model": case.model, LIMIT[api]: 200, "extra_body": case.says(answer)}
    results = []
    for base_url in (case.straight_url, case.gateway.base_url):
        with OpenAI(base_url=f"{base_url}/v1", api_key="any", max_retries=0) as client:
            results.append(await asyncio.to_thread(ask, client, api, how, fields))
        async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="any", max_retries=0) as client_async:
            results.append(await ask_async(client_async, api, how, fields))
    straight, *others = map(lasting, results)
    assert others == [straight] * 3
    said = json.dumps(straight).replace(r"\": \"", r"\":\"")  # engines differ in white space between members
    assert all(
        json.dumps(text)[1:-1] in said for text in (["bash", "ls -l"] if answer.calls else ['"verdict":"yes"'])
    )
