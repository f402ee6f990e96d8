"""What the embedded engine puts on the wire: chunks, whole answers and errors, as vLLM writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.core import sse
from gateway.core.fields import Json, flag, integer, items, obj, text
from gateway.embedded.answer import (
    BadScript,
    Delta,
    PlannedAnswer,
    answer_to,
    rendered_chat,
    scripted_answer,
    tokens_from,
    tokens_of,
)
from gateway.embedded.driver import Generation
from gateway.embedded.model import EngineModel


class Refusal(Exception):
    """An error answer."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


class AnthropicRefusal(Refusal):
    """In the shape that clients of `/v1/messages` read."""

    def body(self) -> bytes:
        return orjson.dumps({"type": "error", "error": {"type": self.kind, "message": str(self)}})


def bad_request(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "BadRequestError", message, param)


class Wire(Protocol):
    """The answer to one request in its wire format; events are whole SSE events."""

    def opening(self) -> Iterator[bytes]: ...

    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]: ...

    def closing(self, finish_reason: str) -> Iterator[bytes]: ...

    def usage_event(self, usage: Json) -> bytes: ...

    def whole(self, deltas: Sequence[Delta], finish_reason: str, usage: Json) -> bytes: ...


@dataclass(slots=True)
class _Frame:
    """What every chunk and answer of one request has in common."""

    id: str
    created_at: int
    model: str

    def json(self, kind: str, choices: list[Any], **more: Any) -> bytes:
        frame = {
            "id": self.id,
            "object": kind,
            "created": self.created_at,
            "model": self.model,
            "choices": choices,
        }
        return orjson.dumps(frame | more)


@dataclass(slots=True)
class ChatWire(_Frame):
    num_calls: int = 0
    """Tool calls so far."""

    def opening(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        for (index, name), run in groupby(deltas, key=lambda delta: (delta.call_index, delta.call_name)):
            text = "".join(delta.text for delta in run)
            if index is None:
                yield self._chunk({"content": text})
            elif name is None:
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            else:
                yield self._chunk({"tool_calls": [{"index": index, **self._call(name)}]})

    def closing(self, finish_reason: str) -> Iterator[bytes]:
        yield self._chunk({}, finish_reason)

    def usage_event(self, usage: Json) -> bytes:
        return sse.event(self.json("chat.completion.chunk", [], usage=usage))

    def whole(self, deltas: Sequence[Delta], finish_reason: str, usage: Json) -> bytes:
        content = "".join(delta.text for delta in deltas if delta.call_index is None)
        calls: list[Json] = []
        arguments: list[list[str]] = []
        for delta in deltas:
            if delta.call_name is not None:
                calls.append(self._call(delta.call_name))
                arguments.append([])
            elif delta.call_index is not None:
                arguments[delta.call_index].append(delta.text)
        for call, texts in zip(calls, arguments, strict=True):
            call["function"]["arguments"] = "".join(texts)
        message: Json = {"role": "assistant", "content": content or (None if calls else "")}
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return self.json("chat.completion", [choice], usage=usage)

    def _call(self, name: str) -> Json:
        """A tool call without its arguments."""
        self.num_calls += 1
        call_id = f"call_{self.id.removeprefix('chatcmpl-')}_{self.num_calls}"
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse.event(self.json("chat.completion.chunk", [choice]))


@dataclass(slots=True)
class CompletionWire(_Frame):
    def opening(self) -> Iterator[bytes]:
        return iter(())

    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        yield self._chunk("".join(delta.text for delta in deltas))

    def closing(self, finish_reason: str) -> Iterator[bytes]:
        yield self._chunk("", finish_reason)

    def usage_event(self, usage: Json) -> bytes:
        return sse.event(self.json("text_completion", [], usage=usage))

    def whole(self, deltas: Sequence[Delta], finish_reason: str, usage: Json) -> bytes:
        text = "".join(delta.text for delta in deltas)
        return self.json("text_completion", [self._choice(text, finish_reason)], usage=usage)

    def _chunk(self, text: str, finish_reason: str | None = None) -> bytes:
        return sse.event(self.json("text_completion", [self._choice(text, finish_reason)]))

    def _choice(self, text: str, finish_reason: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


# ---- the metrics page of the embedded engine, under vLLM's names, and its slots, which vLLM does not tell

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
_LABELS = ("engine", "model_name")


class Exposition:
    """Counters and gauges are read from the model when the page is asked for; times are observed as they come."""

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
        """The times of a request that has finished."""
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
        yield self._gauge("num_requests_running", "Sequences in the batch.", model.num_running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", model.num_waiting)
        slots = GaugeMetricFamily("embedded:max_num_seqs", "Sequences that it may run at once.", labels=_LABELS)
        slots.add_metric(self._labels, spec.max_num_seqs)
        yield slots
        usage = model.pool.num_used / model.pool.num_blocks
        yield self._gauge("kv_cache_usage_perc", "Held share of the KV blocks, 0-1.", usage)
        for name, meaning, value in (
            ("prefix_cache_queries", "Prompt tokens looked up.", counters.prefix_queries_tokens),
            ("prefix_cache_hits", "Prompt tokens found.", counters.prefix_hits_tokens),
            ("num_preemptions", "Sequences preempted.", counters.preemptions),
            ("prompt_tokens", "Prompt tokens of prefilled requests.", counters.prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens that were not computed.", counters.prefix_hits_tokens),
            ("generation_tokens", "Tokens generated.", counters.generation_tokens),
        ):
            family = CounterMetricFamily(f"vllm:{name}", meaning, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family
        sources = CounterMetricFamily(
            "vllm:prompt_tokens_by_source", "Where prompt tokens came from.", labels=(*_LABELS, "source")
        )
        sources.add_metric((*self._labels, "local_compute"), counters.computed_prompt_tokens)
        sources.add_metric((*self._labels, "local_cache_hit"), counters.prefix_hits_tokens)
        yield sources
        info = {
            "block_size": str(spec.block_tokens),
            "enable_prefix_caching": "True",
            "kv_cache_max_concurrency": str(model.capacity_tokens / self._max_model_len),
            "kv_cache_size_tokens": str(model.capacity_tokens),
            "num_gpu_blocks": str(spec.num_blocks),
        }
        config = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=(*_LABELS, *info))
        config.add_metric((*self._labels, *info.values()), 1)
        yield config

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, _LABELS, buckets=_SECONDS, registry=self._registry)
        return histogram.labels(*self._labels)


# --- From the body of a generation request to what the engine runs: prompt, answer, bounds. Refuses as vLLM does.


@dataclass(frozen=True, slots=True)
class Job:
    """A generation request that was understood."""

    prompt: list[bytes]
    """Tokens."""
    answer: PlannedAnswer
    priority: int
    salt: str
    wants_stream: bool
    wants_usage: bool


def job_from(body: Json, is_chat: bool, max_model_len: int, natural_tokens: range) -> Job:
    """Raises Refusal."""
    if body.get("n") not in (None, 1):
        raise bad_request("The embedded engine gives one answer per request: n must be 1.", "n")
    wants_stream, options = flag(body, "stream"), obj(body, "stream_options")
    if options and not wants_stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    priority = body.get("priority") or 0
    if not isinstance(priority, int):
        raise bad_request("priority must be a whole number; lower goes first.", "priority")
    prompt = prompt_tokens(body, is_chat)
    limit = max_tokens(body, len(prompt), max_model_len)
    try:
        script = scripted_answer(body)
    except BadScript as error:
        raise bad_request(str(error), "embedded_script") from None
    answer = answer_to(b"".join(prompt), script, limit, flag(body, "ignore_eos"), natural_tokens)
    wants_usage = wants_stream and flag(options, "include_usage")
    return Job(prompt, answer, priority, text(body, "cache_salt") or "", wants_stream, wants_usage)


def prompt_tokens(body: Json, is_chat: bool) -> list[bytes]:
    """Raises Refusal when there is no prompt in it."""
    if is_chat:
        if not items(body, "messages"):
            raise bad_request("messages must be a list that is not empty.", "messages")
        return tokens_of(rendered_chat(body))
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tokens_of(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(number, int) for number in prompt):
        try:
            return tokens_from(prompt)
        except ValueError as error:
            raise bad_request(str(error), "prompt") from None
    raise bad_request("prompt must be one text, or one list of token ids, and not empty.", "prompt")


def max_tokens(body: Json, num_prompt_tokens: int, max_model_len: int) -> int:
    """The longest answer that was asked for. Raises Refusal when it does not fit behind the prompt."""
    key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    asked = integer(body, key)
    room = max_model_len - num_prompt_tokens
    if asked is None and room >= 1:
        return room
    if asked is not None and asked < 1:
        raise bad_request(f"{key} must be at least 1, got {asked}.", key)
    if asked is None or asked > room:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + (asked or 1)} tokens ({num_prompt_tokens} in the messages, {asked or 1} in the "
            "completion). Please reduce the length of the messages or completion.",
            key,
        )
    return asked


def check_model(body: Json, served: str) -> None:
    """Raises Refusal for another model's name; a request without one is served."""
    asked = text(body, "model")
    if asked is not None and asked != served:
        raise Refusal(404, "NotFoundError", f"The model `{asked}` does not exist.", "model")
