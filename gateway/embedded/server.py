"""The embedded engine: OpenAI's chat and completions endpoints over the engine model, in real time.

A handler for any transport. It answers as vLLM does, names its metrics as vLLM does, and stops generating as soon
as its handler is cancelled. What it says is filler, or what the request scripts (`script.py`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

import orjson

from gateway.core import sse
from gateway.core.fields import Json, items, text
from gateway.core.transport import BodyTooLarge, Request, Responder
from gateway.dialects.prompt_parts import prompts_of
from gateway.embedded.driver import EngineDriver, EngineStopped, Generation
from gateway.embedded.exposition import Exposition
from gateway.embedded.lists import answer_list
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest
from gateway.embedded.request import Job, check_model, job_from, prompt_tokens
from gateway.embedded.tokenizer import chain, ids_of, tokens_from
from gateway.embedded.wire import AnthropicRefusal, ChatWire, CompletionWire, Refusal, Wire, bad_request

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
    await responder.start(200, STREAM_HEADERS)
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
