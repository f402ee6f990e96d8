"""Several prompts in one request: each is generated as if it had come alone, and answered under its index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import orjson

from gateway.core import sse
from gateway.core.fields import Json
from gateway.core.transport import HeaderList, Responder
from gateway.embedded.driver import EngineDriver, Generation
from gateway.embedded.model import ModelRequest
from gateway.embedded.request import Job
from gateway.embedded.tokenizer import chain


async def answer_list(
    driver: EngineDriver,
    jobs: Sequence[Job],
    block_tokens: int,
    frame: Json,
    responder: Responder,
    headers: HeaderList,
) -> None:
    """A stream has one event per prompt, as soon as that is finished. `frame` is what is not choices or usage; its
    id is this request's own. Raises EngineStopped."""
    with ExitStack() as running:
        generations = []
        for index, job in enumerate(jobs):
            request_id = f"{frame['id']}-{index}"
            blocks = chain([*job.prompt, *job.answer.tokens], block_tokens, job.salt)
            request = ModelRequest(request_id, blocks, len(job.prompt), len(job.answer.tokens), job.priority)
            generations.append(driver.submit(request))
            running.callback(driver.abort, request_id)
        if not jobs[0].wants_stream:
            await asyncio.gather(*(generation.all() for generation in generations))
            choices = [_choice(index, job) for index, job in enumerate(jobs)]
            body = frame | {"choices": choices, "usage": _summed_usage(jobs, generations)}
            await responder.reply(200, [("content-type", "application/json")], orjson.dumps(body))
            return
        await responder.start(200, headers)

        async def send(index: int) -> None:
            await generations[index].all()
            await responder.write(sse.event(orjson.dumps(frame | {"choices": [_choice(index, jobs[index])]})))

        async with asyncio.TaskGroup() as group:
            for index in range(len(jobs)):
                group.create_task(send(index))
        if jobs[0].wants_usage:
            usage = frame | {"choices": [], "usage": _summed_usage(jobs, generations)}
            await responder.write(sse.event(orjson.dumps(usage)))
        await responder.write(sse.DONE)
        await responder.end()


def _choice(index: int, job: Job) -> Json:
    text = "".join(delta.text for delta in job.answer.deltas)
    return {"index": index, "text": text, "logprobs": None, "finish_reason": job.answer.finish_reason}


def _summed_usage(jobs: Sequence[Job], generations: Sequence[Generation]) -> Json:
    num_prompt = sum(len(job.prompt) for job in jobs)
    num_output = sum(len(job.answer.tokens) for job in jobs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(generation.cached_tokens for generation in generations)},
    }
