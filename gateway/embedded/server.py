"""Several prompts in one request: each is generated as if it had come alone, and answered under its index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from itertools import count

import orjson

from gateway.config.settings import Embedded
from gateway.core import sse
from gateway.core.fields import Json, items, text
from gateway.core.transport import BodyTooLarge, HeaderList, Request, Responder
from gateway.dialects.completions import prompts_of
from gateway.embedded.answer import chain, ids_of, tokens_from
from gateway.embedded.driver import EngineDriver, EngineStopped, Generation
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest
from gateway.embedded.wire import (
    AnthropicRefusal,
    ChatWire,
    CompletionWire,
    Exposition,
    Job,
    Refusal,
    Wire,
    bad_request,
    check_model,
    job_from,
    prompt_tokens,
)
from gateway.engines.base import EngineAddress
from gateway.transport import transport_of


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
        await responder.open_stream(200, headers)

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


# ---- the embedded engine: OpenAI's chat and completions endpoints over the engine model, in real time

MAX_BODY_BYTES = 64 * 1024 * 1024
JSON_HEADERS = (("content-type", "application/json"),)
STREAM_HEADERS = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    spec: EngineSpec = field(default_factory=lambda: EngineSpec(num_blocks=16_384))
    model: str = "embedded"
    """The name that it serves."""
    is_strict: bool = True
    """Whether another model's name is answered with 404."""
    max_model_len: int | None = None
    """Tokens of prompt and answer at most. None: the KV capacity."""
    speed: float = 1.0
    """How much faster than the cost model says; measure at 1."""
    natural_tokens: range = range(32, 129)
    """Lengths of filler answers that nothing else bounds."""
    version: str = "0+embedded"


class EmbeddedEngine:
    """Start it, give `handler` to a server, stop it."""

    def __init__(self, settings: EmbeddedSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.model = EngineModel(settings.spec)
        capacity_tokens = self.model.capacity_tokens
        self.max_model_len = min(settings.max_model_len or capacity_tokens, capacity_tokens)
        self._exposition = Exposition(self.model, settings.model, self.max_model_len)
        self.driver = EngineDriver(self.model, settings.speed, clock, self._exposition.observe)
        self._numbers = count(1)
        self._started_at = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[Request, Responder], Awaitable[None]]] = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completions,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/openapi.json"): self._openapi,
            ("GET", "/metrics"): self._metrics,
        }

    async def start(self) -> None:
        self.driver.start()

    async def stop(self) -> None:
        """Answers in flight are cut."""
        await self.driver.stop()

    async def handler(self, request: Request, responder: Responder) -> None:
        """A transport Handler."""
        route = self._routes.get((request.method, request.path))
        try:
            if route is None:
                raise self._not_served(request)
            await route(request, responder)
        except Refusal as refusal:
            await responder.reply(refusal.status, JSON_HEADERS, refusal.body())
        except EngineStopped:
            if responder.has_started:
                responder.reset()
            else:
                stopped = Refusal(503, "ServiceUnavailableError", "The engine is stopped.")
                await responder.reply(stopped.status, JSON_HEADERS, stopped.body())

    async def _chat(self, request: Request, responder: Responder) -> None:
        body = await self._body(request)
        wire = ChatWire(self._answer_id("chatcmpl", request), int(time.time()), self._name(body))
        await self._generate(body, wire, responder, is_chat=True)

    async def _completions(self, request: Request, responder: Responder) -> None:
        body = await self._body(request)
        prompts = prompts_of(body)
        if prompts is not None:
            await self._list([{**body, "prompt": prompt} for prompt in prompts], request, responder)
            return
        wire = CompletionWire(self._answer_id("cmpl", request), int(time.time()), self._name(body))
        await self._generate(body, wire, responder, is_chat=False)

    async def _list(self, bodies: list[Json], request: Request, responder: Responder) -> None:
        settings = self.settings
        jobs = [job_from(body, False, self.max_model_len, settings.natural_tokens) for body in bodies]
        frame: Json = {"id": self._answer_id("cmpl", request), "object": "text_completion"}
        frame |= {"created": int(time.time()), "model": self._name(bodies[0])}
        await answer_list(self.driver, jobs, settings.spec.block_tokens, frame, responder, STREAM_HEADERS)
        for job in jobs:
            self._exposition.succeeded(job.answer.finish_reason)

    async def _generate(self, body: Json, wire: Wire, responder: Responder, is_chat: bool) -> None:
        job = job_from(body, is_chat, self.max_model_len, self.settings.natural_tokens)
        request_id = str(next(self._numbers))
        blocks = chain([*job.prompt, *job.answer.tokens], self.settings.spec.block_tokens, job.salt)
        generation = self.driver.submit(
            ModelRequest(request_id, blocks, len(job.prompt), len(job.answer.tokens), job.priority)
        )
        try:
            if job.wants_stream:
                await _stream(job, generation, wire, responder)
            else:
                await generation.all()
                whole = wire.whole(job.answer.deltas, job.answer.finish_reason, _usage(job, generation))
                await responder.reply(200, JSON_HEADERS, whole)
            self._exposition.succeeded(job.answer.finish_reason)
        finally:
            self.driver.abort(request_id)

    async def _models(self, request: Request, responder: Responder) -> None:
        card = {"id": self.settings.model, "object": "model", "created": self._started_at, "owned_by": "turngate"}
        card |= {"root": self.settings.model, "parent": None, "max_model_len": self.max_model_len}
        await _reply_json(responder, {"object": "list", "data": [card]})

    async def _tokenize(self, request: Request, responder: Responder) -> None:
        body = await self._body(request)
        ids = ids_of(prompt_tokens(body, is_chat="messages" in body))
        answer = {"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids, "token_strs": None}
        await _reply_json(responder, answer)

    async def _detokenize(self, request: Request, responder: Responder) -> None:
        body = await self._body(request)
        ids = items(body, "tokens")
        try:
            tokens = tokens_from(number for number in ids if isinstance(number, int))
        except ValueError as error:
            raise bad_request(str(error), "tokens") from None
        await _reply_json(responder, {"prompt": b"".join(tokens).decode(errors="replace")})

    async def _health(self, request: Request, responder: Responder) -> None:
        await responder.reply(200 if self.driver.is_running else 503, (), b"")

    async def _version(self, request: Request, responder: Responder) -> None:
        await _reply_json(responder, {"version": self.settings.version})

    async def _openapi(self, request: Request, responder: Responder) -> None:
        """Only what a probe looks for: the paths."""
        paths: Json = {path: {method.lower(): {}} for method, path in self._routes}
        info = {"title": "Turngate's embedded engine", "version": self.settings.version}
        await _reply_json(responder, {"openapi": "3.1.0", "info": info, "paths": paths})

    async def _metrics(self, request: Request, responder: Responder) -> None:
        headers = (("content-type", "text/plain; version=0.0.4; charset=utf-8"),)
        await responder.reply(200, headers, self._exposition.page())

    async def _body(self, request: Request) -> Json:
        """Raises Refusal for what is no JSON object, or names another model."""
        try:
            body = orjson.loads(await request.read(MAX_BODY_BYTES))
        except BodyTooLarge:
            raise Refusal(
                413, "RequestTooLargeError", f"The body is longer than {MAX_BODY_BYTES} bytes."
            ) from None
        except orjson.JSONDecodeError as error:
            raise bad_request(f"The body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise bad_request("The body must be a JSON object.")
        if self.settings.is_strict:
            check_model(body, self.settings.model)
        return body

    def _name(self, body: Json) -> str:
        return text(body, "model") or self.settings.model

    def _answer_id(self, prefix: str, request: Request) -> str:
        return f"{prefix}-{request.headers.get('x-request-id') or f'{self._started_at}-{next(self._numbers)}'}"

    def _not_served(self, request: Request) -> Refusal:
        if any(path == request.path for _, path in self._routes):
            return Refusal(405, "MethodNotAllowedError", f"{request.path} does not take {request.method}.")
        message = f"The embedded engine does not serve {request.path}; use /v1/chat/completions."
        if request.path.startswith("/v1/messages"):
            return AnthropicRefusal(404, "not_found_error", message)
        return Refusal(404, "NotFoundError", message)


async def _stream(job: Job, generation: Generation, wire: Wire, responder: Responder) -> None:
    """Headers at once, as vLLM sends them; then, whenever tokens came, what they show, in one write."""
    await responder.open_stream(200, STREAM_HEADERS)
    answer, deltas = job.answer, job.answer.deltas
    num_tokens = num_sent = 0
    while num_tokens < len(answer.tokens):
        chunks = [] if num_tokens else list(wire.opening())
        num_tokens = await generation.more_than(num_tokens)
        start = num_sent
        while num_sent < len(deltas) and deltas[num_sent].at_token <= num_tokens:
            num_sent += 1
        chunks += wire.events(deltas[start:num_sent]) if num_sent > start else ()
        if num_tokens == len(answer.tokens):
            chunks += wire.closing(answer.finish_reason)
            chunks += [wire.usage_event(_usage(job, generation))] if job.wants_usage else []
            chunks.append(sse.DONE)
        if chunks:
            await responder.write(b"".join(chunks))
    await responder.end()


def _usage(job: Job, generation: Generation) -> Json:
    num_prompt, num_output = len(job.prompt), len(job.answer.tokens)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
        "embedded_queue_ms": round(1000 * generation.queue_s),
    }


async def _reply_json(responder: Responder, value: Json) -> None:
    await responder.reply(200, JSON_HEADERS, orjson.dumps(value))


# ---- the embedded engine behind a port of its own, sized by the configuration

BLOCK_TOKENS = 16


class HostedEngine:
    """Start it, point an engine address of kind `embedded` at the port, stop it."""

    def __init__(self, section: Embedded) -> None:
        num_blocks = max(1, section.capacity_tokens // BLOCK_TOKENS)
        spec = EngineSpec(num_blocks, BLOCK_TOKENS, section.slots, priority_scheduling=True)
        self._engine = EmbeddedEngine(EmbeddedSettings(spec, section.model, speed=section.speed))
        self._server = transport_of().server(self._engine.handler)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Serve; returns the port. Raises OSError."""
        await self._engine.start()
        return await self._server.start(host, port)

    async def stop(self) -> None:
        """Answers in flight are cut."""
        await self._server.stop(grace_s=0)
        await self._engine.stop()


async def hosted(address: EngineAddress, section: Embedded, running: AsyncExitStack) -> EngineAddress:
    """The address of an engine; an embedded one is started for it on a loopback port, and stopped by `running`."""
    if address.base_url:
        return address
    engine = HostedEngine(section)
    running.push_async_callback(engine.stop)
    return replace(address, base_url=f"http://127.0.0.1:{await engine.start()}")
