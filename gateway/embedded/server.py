"""The embedded engine: vLLM's endpoints over the engine model in real time, and the same engine in this
process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.config.settings import Embedded
from gateway.core.fields import Json, items
from gateway.core.transport import BodyTooLarge, Request, Responder
from gateway.dialects.completions import Completions
from gateway.embedded.answer import PlannedAnswer, chain, ids_of, tokens_from
from gateway.embedded.driver import EngineDriver, EngineStopped, Generation
from gateway.embedded.embeddings import embeddings_of
from gateway.embedded.jobs import Job, Refusal, bad_request, check_model, job_from, prompt_tokens
from gateway.embedded.messages import AnthropicRefusal, MessagesWire, chat_of_message
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest
from gateway.embedded.responses import ResponsesWire, chat_of_response, offered_in_response
from gateway.embedded.scripts import Offered, Rule, rules_in
from gateway.embedded.wire import ChatWire, CompletionWire, Wire
from gateway.engines.base import EngineAddress
from gateway.transport import transport_of

VERSION = "0+embedded"
_MESSAGES = "/v1/messages"
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
    rules: Sequence[Rule] = ()
    """Scripted answers. Requests that no rule fits get answers of its own."""


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
            ("POST", "/v1/responses"): self._responses,
            ("POST", _MESSAGES): self._messages,
            ("POST", f"{_MESSAGES}/count_tokens"): self._count_tokens,
            ("POST", "/v1/embeddings"): self._embeddings,
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
            await _refuse(request, responder, refusal)
        except EngineStopped:
            if responder.has_started:
                responder.reset()
            else:
                stopped = Refusal(503, "ServiceUnavailableError", "The engine is stopped.")
                await _refuse(request, responder, stopped)

    async def _chat(self, request: Request, responder: Responder) -> None:
        body = await self._body(request)
        wire = ChatWire(self._answer_id("chatcmpl", request), int(time.time()), self.settings.model)
        await self._generate([self._job(body, is_chat=True)], wire, responder)

    async def _completions(self, request: Request, responder: Responder) -> None:
        body = await self._body(request)
        wire = CompletionWire(self._answer_id("cmpl", request), int(time.time()), self.settings.model)
        prompts = Completions().prompts(body)
        bodies = [body] if prompts is None else [{**body, "prompt": prompt} for prompt in prompts]
        jobs = [self._job(one, is_chat=False) for one in bodies]
        await self._generate(jobs, wire, responder, sends_whole=None if prompts is None else wire.whole_event)

    async def _responses(self, request: Request, responder: Responder) -> None:
        body = await self._body(request)
        offered = offered_in_response(body)
        job = self._job(chat_of_response(body), is_chat=True, offered=offered)
        wire = ResponsesWire(self._number(request), int(time.time()), self.settings.model, body, offered)
        await self._generate([job], wire, responder)

    async def _messages(self, request: Request, responder: Responder) -> None:
        job = self._job(chat_of_message(await self._body(request)), is_chat=True)
        await self._generate([job], MessagesWire(self._number(request), self.settings.model), responder)

    async def _count_tokens(self, request: Request, responder: Responder) -> None:
        chat = chat_of_message(await self._body(request), counts_only=True)
        await _reply_json(responder, {"input_tokens": len(prompt_tokens(chat, is_chat=True))})

    async def _embeddings(self, request: Request, responder: Responder) -> None:
        await _reply_json(responder, embeddings_of(await self._body(request), self.settings.model))

    async def _generate(
        self,
        jobs: Sequence[Job],
        wire: Wire,
        responder: Responder,
        sends_whole: Callable[[int, PlannedAnswer], bytes] | None = None,
    ) -> None:
        """Generate the answers to some prompts, each as if it had come alone, and send them under their indexes.

        `sends_whole`: makes one event of a whole answer, where that takes the place of the stream of its text.
        """
        with ExitStack() as running:
            runs = [[self._submit(job, answer, running) for answer in job.answers] for job in jobs]
            answers = [answer for job in jobs for answer in job.answers]
            if jobs[0].wants_stream:
                await _AnswerStream(jobs, runs, wire, responder, sends_whole).send()
            else:
                await asyncio.gather(*(generation.all() for run in runs for generation in run))
                await responder.reply(200, JSON_HEADERS, wire.whole(answers, _usage(jobs, runs)))
        for answer in answers:
            self._exposition.succeeded(answer.finish_reason)

    def _job(self, body: Json, is_chat: bool, offered: Offered | None = None) -> Job:
        return job_from(body, is_chat, self.max_model_len, offered, self.settings.rules)

    def _submit(self, job: Job, answer: PlannedAnswer, running: ExitStack) -> Generation:
        """Begin to generate an answer. The end of `running` aborts it."""
        request_id = str(next(self._numbers))
        blocks = chain([*job.prompt, *answer.tokens], self.settings.spec.block_tokens, job.salt)
        num_prompt, num_output = len(job.prompt), len(answer.tokens)
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
        return f"{prefix}-{self._number(request)}"

    def _number(self, request: Request) -> str:
        """Return what the ids of an answer have in common."""
        return request.headers.get("x-request-id") or f"{self._started_at}-{next(self._numbers)}"

    def _not_served(self, request: Request) -> Refusal:
        if any(path == request.path for _, path in self._routes):
            return Refusal(405, "MethodNotAllowedError", f"{request.path} does not take {request.method}.")
        message = f"The embedded engine does not serve {request.path}; use /v1/chat/completions."
        return Refusal(404, "NotFoundError", message)


async def _refuse(request: Request, responder: Responder, refusal: Refusal) -> None:
    if request.path.startswith(_MESSAGES):
        refusal = AnthropicRefusal(refusal)
    await responder.reply(refusal.status, JSON_HEADERS, refusal.body())


@dataclass(frozen=True, slots=True)
class _AnswerStream:
    """The stream of the answers to one request. Headers go at once, as vLLM's do, and then the text of new tokens,
    in one write each time."""

    jobs: Sequence[Job]
    runs: Sequence[Sequence[Generation]]
    """By job and answer."""
    wire: Wire
    responder: Responder
    sends_whole: Callable[[int, PlannedAnswer], bytes] | None

    async def send(self) -> None:
        await self.responder.open_stream(200, STREAM_HEADERS)
        pairs = zip(self.jobs, self.runs, strict=True)
        answers = [pair for job, run in pairs for pair in zip(job.answers, run, strict=True)]
        if len(answers) == 1:
            # The end goes with the last text, in one write.
            await self._send_answer(0, *answers[0], is_last=True)
        else:
            async with asyncio.TaskGroup() as group:
                for index, (answer, generation) in enumerate(answers):
                    group.create_task(self._send_answer(index, answer, generation))
            await self.responder.write(b"".join(self._ending()))
        await self.responder.end()

    async def _send_answer(
        self, index: int, answer: PlannedAnswer, generation: Generation, is_last: bool = False
    ) -> None:
        if self.sends_whole is not None:
            await generation.all()
            ending = self._ending() if is_last else ()
            await self.responder.write(b"".join([self.sends_whole(index, answer), *ending]))
            return
        deltas = answer.deltas
        num_tokens = num_sent = 0
        while num_tokens < len(answer.tokens):
            is_first = num_tokens == 0
            num_tokens = await generation.more_than(num_tokens)
            chunks = list(self.wire.opening(index, _usage(self.jobs, self.runs))) if is_first else []
            start = num_sent
            while num_sent < len(deltas) and deltas[num_sent].at_token <= num_tokens:
                num_sent += 1
            chunks += self.wire.events(index, deltas[start:num_sent]) if num_sent > start else ()
            if num_tokens == len(answer.tokens):
                chunks += self.wire.closing(index, answer)
                chunks += self._ending() if is_last else ()
            if chunks:
                await self.responder.write(b"".join(chunks))

    def _ending(self) -> Iterator[bytes]:
        return self.wire.ending(_usage(self.jobs, self.runs), self.jobs[0].wants_usage)


def _usage(jobs: Sequence[Job], runs: Sequence[Sequence[Generation]]) -> Json:
    """Return the usage of all answers. A prompt with several answers counts once."""
    num_prompt = sum(len(job.prompt) for job in jobs)
    num_output = sum(len(answer.tokens) for job in jobs for answer in job.answers)
    queue = {"embedded_queue_ms": round(1000 * runs[0][0].queue_s)} if len(jobs) == 1 else {}
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(run[0].cached_tokens for run in runs)},
        **queue,
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
        rules = rules_in(Path(section.script)) if section.script is not None else ()
        self._engine = EmbeddedEngine(EmbeddedSettings(spec, section.model, speed=section.speed, rules=rules))
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
