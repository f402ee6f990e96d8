"""Lists of prompts and batches in front of a real vLLM, and of a real SGLang."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from tests.path.batches import rows_of
from tests.real.gateway import Gateway, engine_url, gateway
from tests.real.sglang import Sglang
from tests.real.vllm import Vllm

pytestmark = pytest.mark.asyncio(loop_scope="module")

APART = {"X-Turngate-Prompt-Errors": "separate"}
PROMPTS = [f"{'One two three four five. ' * 20 * (n % 2)}Number {n} is" for n in range(40)]
TOO_LONG = "word " * 60_000


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Kind and base URL."""
    running: Vllm | Sglang = request.getfixturevalue(f"{request.param}_process")
    return request.param, running.base_url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(engine: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    directory = str(tmp_path_factory.mktemp("batches"))
    async with gateway(engine_url(*engine), batches__directory=directory) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(front: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{front.base_url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


async def texts(client: AsyncOpenAI, **more: Any) -> list[str]:
    answer = await client.completions.create(
        model="tiny", prompt=PROMPTS, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}, **more
    )
    assert [choice.index for choice in answer.choices] == list(range(len(PROMPTS)))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8 * len(PROMPTS)
    return [choice.text for choice in answer.choices]


async def test_a_list_is_answered_as_straight_from_the_engine(
    client: AsyncOpenAI, engine: tuple[str, str]
) -> None:
    async with AsyncOpenAI(base_url=f"{engine[1]}/v1", api_key="none", timeout=300) as straight:
        wanted = await texts(straight)
    found = await texts(client)
    # Batches of another shape round otherwise: a near tie of two tokens may fall to the other one.
    assert sum(a == b for a, b in zip(found, wanted, strict=True)) >= 0.9 * len(PROMPTS)


async def test_a_streamed_list_says_the_same_as_a_whole_one(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="tiny",
        prompt=PROMPTS,
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    found, usage = [""] * len(PROMPTS), None
    async for event in stream:
        for choice in event.choices:
            found[choice.index] += choice.text
        usage = event.usage or usage
    assert usage is not None
    assert usage.completion_tokens == 8 * len(PROMPTS)
    wanted = await texts(client)
    assert sum(a == b for a, b in zip(found, wanted, strict=True)) >= 0.9 * len(PROMPTS)


async def test_several_choices_for_each_prompt_keep_the_numbering(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt=PROMPTS, n=2, max_tokens=2, temperature=1)
    assert [choice.index for choice in answer.choices] == list(range(2 * len(PROMPTS)))


async def test_a_prompt_that_is_too_long_fails_the_list_or_alone(client: AsyncOpenAI) -> None:
    prompts = [*PROMPTS[:7], TOO_LONG, *PROMPTS[8:]]
    with pytest.raises(BadRequestError):
        await client.completions.create(model="tiny", prompt=prompts, max_tokens=2)
    answer = await client.completions.create(model="tiny", prompt=prompts, max_tokens=2, extra_headers=APART)
    ends: list[str] = [choice.finish_reason for choice in answer.choices]
    assert [index for index, end in enumerate(ends) if end == "error"] == [7]
    assert len(ends) == len(prompts)


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_a_batch_is_answered_line_by_line(client: AsyncOpenAI, url: str) -> None:
    def body(n: int) -> dict[str, Any]:
        message = [{"role": "user", "content": f"Say {n}."}]
        match url:
            case "/v1/chat/completions":
                return {"messages": message, "max_tokens": 4}
            case "/v1/responses":
                return {"input": message, "max_output_tokens": 4}
        return {"prompt": f"Say {n}.", "max_tokens": 4}

    rows = [
        {"custom_id": f"r{n}", "method": "POST", "url": url, "body": {"model": "tiny"} | body(n)}
        for n in range(12)
    ]
    file = await client.files.create(file=("in.jsonl", b"\n".join(map(orjson.dumps, rows))), purpose="batch")
    endpoint: Any = url
    made = await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    async with asyncio.timeout(120):
        while (done := await client.batches.retrieve(made.id)).status not in ("completed", "failed"):
            await asyncio.sleep(0.2)
    assert (done.status, done.errors, done.error_file_id) == ("completed", None, None)
    assert set(await rows_of(client, done.output_file_id)) == {f"r{n}" for n in range(12)}
    assert done.usage is not None
    assert done.usage.output_tokens > 0
