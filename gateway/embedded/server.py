"""The embedded engine: vLLM's endpoints over the engine model in real time, and the same engine in this
process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from itertools import count

import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.config.settings import Embedded
from gateway.core import sse
from gateway.core.fields import Json, items
from gateway.core.transport import BodyTooLarge, Request, Responder
from gateway.dialects.completions import Completions
from gateway.embedded.answer import chain, ids_of, tokens_from
from gateway.embedded.driver import EngineDriver, EngineStopped, Generation
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest
from gateway.embedded.wire import (
    AnthropicRefusal,
    ChatWire,
    CompletionWire,
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

VERSION = "0+embedded"
MAX_BODY_BYTES = 64 * 1024 * 1024
JSON_HEADERS = (("content-type", "application/json"),)
STREAM_HEADERS = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """The size, the speed and the model name of one embedded engine."""

    spec: EngineSpec = field(default_factory=lambda: EngineSpec(num_blocks=16_384))
    model: str = "embedded"
    """Name of the served model."""
    max_model_len: int | None = None
    """Most tokens of prompt and answer. None: the KV capacity."""
    speed: float = 1.0
    """Speed relative to the cost model. Measurements take 1."""


class EmbeddedEngine:
    """An engine that `start` runs and whose `handler` a server calls, until `stop`."""

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
        """Stop the engine. Answers in flight are cut."""
        await self.driver.stop()

    async def handler(self, request: Request, responder: Responder) -> None:
        """Answer one request: the `Handler` of a transport."""
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
        wire = ChatWire(self._answer_id("chatcmpl", request), int(time.time()), self.settings.model)
        await self._generate(body, wire, responder, is_chat=True)

    async def _completions(self, request: Request, responder: Responder) -> None:
        body = await self._body(request)
        wire = CompletionWire(self._answer_id("cmpl", request), int(time.time()), self.settings.model)
        prompts = Completions().prompts(body)
        if prompts is not None:
            await self._generate_list([{**body, "prompt": prompt} for prompt in prompts], wire, responder)
        else:
            await self._generate(body, wire, responder, is_chat=False)

    async def _generate(self, body: Json, wire: Wire, responder: Responder, is_chat: bool) -> None:
        job = self._job(body, is_chat)
        with ExitStack() as running:
            generation = self._submit(job, running)
            if job.wants_stream:
                await _stream(job, generation, wire, responder)
            else:
                await generation.all()
                await responder.reply(200, JSON_HEADERS, wire.whole(job.answer, _usage(job, generation)))
            self._exposition.succeeded(job.answer.finish_reason)

    async def _generate_list(self, bodies: list[Json], wire: CompletionWire, responder: Responder) -> None:
        """Answer several prompts under their indexes, each generated as if it had come alone."""
        jobs = [self._job(body, is_chat=False) for body in bodies]
        with ExitStack() as running:
            generations = [self._submit(job, running) for job in jobs]
            if jobs[0].wants_stream:
                await _stream_list(jobs, generations, wire, responder)
            else:
                await asyncio.gather(*(generation.all() for generation in generations))
                whole = wire.whole_list([job.answer for job in jobs], _summed_usage(jobs, generations))
                await responder.reply(200, JSON_HEADERS, whole)
        for job in jobs:
            self._exposition.succeeded(job.answer.finish_reason)

    def _job(self, body: Json, is_chat: bool) -> Job:
        return job_from(body, is_chat, self.max_model_len)

    def _submit(self, job: Job, running: ExitStack) -> Generation:
        """Begin to generate an answer. The end of `running` aborts it."""
        request_id = str(next(self._numbers))
        blocks = chain([*job.prompt, *job.answer.tokens], self.settings.spec.block_tokens, job.salt)
        num_prompt, num_output = len(job.prompt), len(job.answer.tokens)
        generation = self.driver.submit(ModelRequest(request_id, blocks, num_prompt, num_output, job.priority))
        running.callback(self.driver.abort, request_id)
        return generation

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
        await _reply_json(responder, {"version": VERSION})

    async def _openapi(self, request: Request, responder: Responder) -> None:
        """Reply with the paths, which is all that a probe looks for."""
        paths: Json = {path: {method.lower(): {}} for method, path in self._routes}
        info = {"title": "Turngate's embedded engine", "version": VERSION}
        await _reply_json(responder, {"openapi": "3.1.0", "info": info, "paths": paths})

    async def _metrics(self, request: Request, responder: Responder) -> None:
        headers = (("content-type", "text/plain; version=0.0.4; charset=utf-8"),)
        await responder.reply(200, headers, self._exposition.page())

    async def _body(self, request: Request) -> Json:
        """Return the body of a request. Raises Refusal if it is no JSON object, or names another model."""
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
        check_model(body, self.settings.model)
        return body

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
    """Send the headers at once, as vLLM does, and then the text of new tokens, in one write each time."""
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


async def _stream_list(
    jobs: Sequence[Job], generations: Sequence[Generation], wire: CompletionWire, responder: Responder
) -> None:
    """Send one event per prompt, as soon as its answer is complete."""
    await responder.open_stream(200, STREAM_HEADERS)

    async def send(index: int) -> None:
        await generations[index].all()
        await responder.write(wire.whole_event(index, jobs[index].answer))

    async with asyncio.TaskGroup() as group:
        for index in range(len(jobs)):
            group.create_task(send(index))
    if jobs[0].wants_usage:
        await responder.write(wire.usage_event(_summed_usage(jobs, generations)))
    await responder.write(sse.DONE)
    await responder.end()


def _usage(job: Job, generation: Generation) -> Json:
    return _summed_usage([job], [generation]) | {"embedded_queue_ms": round(1000 * generation.queue_s)}


def _summed_usage(jobs: Sequence[Job], generations: Sequence[Generation]) -> Json:
    num_prompt = sum(len(job.prompt) for job in jobs)
    num_output = sum(len(job.answer.tokens) for job in jobs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(generation.cached_tokens for generation in generations)},
    }


async def _reply_json(responder: Responder, value: Json) -> None:
    await responder.reply(200, JSON_HEADERS, orjson.dumps(value))


# ---- the metrics page under vLLM's names, and the number of slots, which vLLM does not report

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
_LABELS = ("engine", "model_name")


class Exposition:
    """The metrics of one engine. A page reads counters and gauges from the model; times are observed at each
    end."""

    def __init__(self, model: EngineModel, model_name: str, max_model_len: int) -> None:
        self._model = model
        self._max_model_len = max_model_len
        self._labels = ("0", model_name)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._first_token = self._histogram("time_to_first_token_seconds", "Until the first token.")
        self._end_to_end = self._histogram("e2e_request_latency_seconds", "Until the last token.")
        self._queue = self._histogram("request_queue_time_seconds", "In the waiting queue.")
        self._prefill = self._histogram("request_prefill_time_seconds", "From admission to the first token.")
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last.")
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Mean time between tokens.")
        self._successes = Counter(
            "vllm:request_success", "Complete answers.", (*_LABELS, "finished_reason"), registry=self._registry
        )

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def observe(self, generation: Generation) -> None:
        """Record the times of a finished request."""
        submitted_at, finished_at = generation.submitted_at, generation.finished_at
        admitted_at, first_at = generation.admitted_at, generation.first_token_at
        if finished_at is None or admitted_at is None or first_at is None:
            return
        self._first_token.observe(first_at - submitted_at)
        self._end_to_end.observe(finished_at - submitted_at)
        self._queue.observe(max(0.0, admitted_at - submitted_at))
        self._prefill.observe(first_at - admitted_at)
        self._decode.observe(finished_at - first_at)
        if generation.num_tokens > 1:
            self._per_token.observe((finished_at - first_at) / (generation.num_tokens - 1))

    def succeeded(self, finish_reason: str) -> None:
        reason = "length" if finish_reason == "length" else "stop"
        self._successes.labels(*self._labels, reason).inc()

    def collect(self) -> Iterator[Metric]:
        model = self._model
        spec, counters = model.spec, model.counters
        used = model.pool.num_used / model.pool.num_blocks
        for name, meaning, value in (
            ("vllm:num_requests_running", "Sequences in the batch.", model.num_running),
            ("vllm:num_requests_waiting", "Requests in the queue.", model.num_waiting),
            ("embedded:max_num_seqs", "Sequences that it may run at once.", spec.max_num_seqs),
            ("vllm:kv_cache_usage_perc", "Held share of the KV blocks, 0-1.", used),
        ):
            yield self._family(GaugeMetricFamily, name, meaning, ({}, value))
        for name, meaning, value in (
            ("prefix_cache_queries", "Prompt tokens looked up.", counters.prefix_queries_tokens),
            ("prefix_cache_hits", "Prompt tokens found.", counters.prefix_hits_tokens),
            ("num_preemptions", "Sequences preempted.", counters.preemptions),
            ("prompt_tokens", "Prompt tokens of prefilled requests.", counters.prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens that were not computed.", counters.prefix_hits_tokens),
            ("generation_tokens", "Tokens generated.", counters.generation_tokens),
        ):
            yield self._family(CounterMetricFamily, f"vllm:{name}", meaning, ({}, value))
        yield self._family(
            CounterMetricFamily,
            "vllm:prompt_tokens_by_source",
            "Where prompt tokens came from.",
            ({"source": "local_compute"}, counters.computed_prompt_tokens),
            ({"source": "local_cache_hit"}, counters.prefix_hits_tokens),
        )
        info = {
            "block_size": str(spec.block_tokens),
            "enable_prefix_caching": "True",
            "kv_cache_max_concurrency": str(model.capacity_tokens / self._max_model_len),
            "kv_cache_size_tokens": str(model.capacity_tokens),
            "num_gpu_blocks": str(spec.num_blocks),
        }
        yield self._family(GaugeMetricFamily, "vllm:cache_config_info", "The KV cache.", (info, 1))

    def _family(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        meaning: str,
        *samples: tuple[dict[str, str], float],
    ) -> Metric:
        """Return a metric of samples, each with its labels beside those of the engine."""
        family = kind(name, meaning, labels=(*_LABELS, *samples[0][0]))
        for labels, value in samples:
            family.add_metric((*self._labels, *labels.values()), value)
        return family

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, _LABELS, buckets=_SECONDS, registry=self._registry)
        return histogram.labels(*self._labels)


# ---- the engine in this process, behind a port of its own

BLOCK_TOKENS = 16


class InProcessEngine:
    """An engine of the configured size behind a port, to which an engine address of kind `embedded` points."""

    def __init__(self, section: Embedded) -> None:
        num_blocks = max(1, section.capacity_tokens // BLOCK_TOKENS)
        spec = EngineSpec(num_blocks, BLOCK_TOKENS, section.slots, priority_scheduling=True)
        self._engine = EmbeddedEngine(EmbeddedSettings(spec, section.model, speed=section.speed))
        self._server = transport_of().server(self._engine.handler)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Serve, and return the port. Raises OSError."""
        await self._engine.start()
        return await self._server.start(host, port)

    async def stop(self) -> None:
        """Stop the server and the engine. Answers in flight are cut."""
        await self._server.stop(grace_s=0)
        await self._engine.stop()


async def started_in_process(address: EngineAddress, section: Embedded, running: AsyncExitStack) -> EngineAddress:
    """Return the address of an engine. An embedded one starts on a loopback port, and the end of `running` stops
    it."""
    if address.base_url:
        return address
    engine = InProcessEngine(section)
    running.push_async_callback(engine.stop)
    return replace(address, base_url=f"http://127.0.0.1:{await engine.start()}")
