"""Traces as OpenTelemetry has them. Its conventions for GenAI may still change: their names stand here alone.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.core.errors import Outcome
from gateway.core.fields import excerpt
from gateway.core.transport import HeaderList
from gateway.exchange import Exchange, Trace
from policies.types import Usage
from tool_runtime.types import Call, Result

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
TOOL = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"

METHOD = "http.request.method"
ROUTE = "http.route"
URL_PATH = "url.path"
SERVER = "server.address"
PORT = "server.port"
ERROR = "error.type"

REQUEST_ID = "turngate.request.id"
TENANT = "turngate.tenant"
FAMILY = "turngate.family.id"
PARENT = "turngate.session.parent_id"
TURN = "turngate.turn"
KIND = "turngate.turn.kind"
OUTCOME = "turngate.outcome"
REASON = "turngate.reason"
REPLICA = "turngate.replica"
ATTEMPT = "turngate.attempt"
EXPECTED_CACHED_TOKENS = "turngate.expected_cached_tokens"
TOOL_STATUS = "turngate.tool.status"
TOOL_ORIGIN = "turngate.tool.origin"

EXECUTE_TOOL = "execute_tool"
WAIT = "turngate.wait"


W3C = TraceContextTextMapPropagator()
_CONTEXT_HEADERS = frozenset(("traceparent", "tracestate"))
_EXPORT_TIMEOUT_S = 5.0
_FINE = frozenset((Outcome.ANSWERED, Outcome.CLIENT_GONE))


def exporting(endpoint: str, service_name: str, share: float) -> TracerProvider:
    """Return a provider that sends spans in batches from its own thread. Spans that the collector does not
    accept in time are dropped."""
    about = {"service.name": service_name, "service.version": version("turngate")}
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(share)), resource=Resource.create(about), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(
        f"{endpoint.rstrip('/').removesuffix('/v1/traces')}/v1/traces", timeout=_EXPORT_TIMEOUT_S
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class OtelTracing:
    """An `observer.Tracing`. `clock` is the monotonic clock of the exchanges."""

    def __init__(self, provider: TracerProvider, clock: Callable[[], float]) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("turngate", version("turngate"))
        self._clock = clock

    def trace(self, exchange: Exchange) -> Trace | None:
        headers = exchange.request.headers
        method, path = excerpt(exchange.request.method), excerpt(exchange.request.path)
        carrier = {name: value for name in _CONTEXT_HEADERS if (value := headers.get(name)) is not None}
        span = self._tracer.start_span(
            f"{method} {path}",
            W3C.extract(carrier),
            SpanKind.SERVER,
            {
                METHOD: method,
                URL_PATH: path,
                REQUEST_ID: exchange.id,
            },
        )
        return OtelTrace(self._tracer, span, time.time() - self._clock()) if span.is_recording() else None

    def close(self) -> None:
        self._provider.shutdown()


class OtelTrace:
    """An `exchange.Trace`. `ahead_s`: the wall clock minus the exchanges' clock."""

    def __init__(self, tracer: Tracer, span: Span, ahead_s: float) -> None:
        self.id = trace.format_trace_id(span.get_span_context().trace_id)
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._ahead_s = ahead_s
        self._call: Span | None = None

    def begin_call(self, exchange: Exchange, engine: str, base_url: str, headers: HeaderList) -> HeaderList:
        self.end_call(exchange)  # a repeated call ends the span of the refused one
        operation = exchange.dialect.operation
        place = urlsplit(base_url)
        dispatch = exchange.dispatch
        self._call = self._tracer.start_span(
            f"{operation} {exchange.payload.engine_model}",
            self._context,
            SpanKind.CLIENT,
            _known(
                {
                    OPERATION: operation,
                    PROVIDER: engine,
                    REQUEST_MODEL: exchange.payload.engine_model,
                    REQUEST_MAX_TOKENS: exchange.max_output_tokens,
                    CONVERSATION: exchange.recognition.session_id if exchange.recognition else None,
                    SERVER: place.hostname,
                    PORT: place.port,
                    ATTEMPT: exchange.attempt.number if exchange.attempt else None,
                    REPLICA: dispatch.replica_id if dispatch else None,
                    EXPECTED_CACHED_TOKENS: dispatch.expected_cached_tokens if dispatch else None,
                }
            ),
        )
        carrier: dict[str, str] = {}
        W3C.inject(carrier, trace.set_span_in_context(self._call))
        return [*((n, v) for n, v in headers if n.lower() not in _CONTEXT_HEADERS), *carrier.items()]

    def end_call(self, exchange: Exchange) -> None:
        span, self._call = self._call, None
        if span is None:
            return
        reply = exchange.reply
        span.set_attributes(
            _known(
                {
                    RESPONSE_MODEL: excerpt(reply.model),
                    RESPONSE_ID: excerpt(reply.id),
                    FINISH_REASONS: [excerpt(reply.finish_reason)] if reply.finish_reason else None,
                    **_usage(reply.usage),
                }
            )
        )
        if not (reply.is_complete or exchange.is_delivered):
            span.set_attribute(ERROR, str(reply.status) if reply.status >= 400 else "incomplete")
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    async def run_tool(self, call: Call, running: Awaitable[Result]) -> Result:
        name = excerpt(call.name)
        about = {OPERATION: EXECUTE_TOOL, TOOL: name, TOOL_CALL: excerpt(call.id)}
        with self._tracer.start_as_current_span(
            f"{EXECUTE_TOOL} {name}", self._context, SpanKind.INTERNAL, about, record_exception=False
        ) as span:
            result = await running
            span.set_attributes({TOOL_STATUS: result.status, TOOL_ORIGIN: result.origin})
        return result

    def finished(self, exchange: Exchange) -> None:
        self.end_call(exchange)
        self._waited(exchange)
        assert exchange.end is not None
        span, outcome = self._span, exchange.end.outcome
        span.set_attributes(_known(_about(exchange) | {OUTCOME: outcome.value}))
        if outcome not in _FINE:
            span.set_attribute(ERROR, outcome.value)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _waited(self, exchange: Exchange) -> None:
        """Add the span of the wait, from recognition to a slot or to the end of a turn without one."""
        times, dispatch = exchange.timings, exchange.dispatch
        until = times.leased_at if times.leased_at is not None else times.finished_at
        if times.recognised_at is None or until is None:
            return
        about = {REASON: dispatch.reason.value, REPLICA: dispatch.replica_id} if dispatch else None
        began = self._tracer.start_span(
            WAIT, self._context, SpanKind.INTERNAL, about, start_time=self._ns(times.recognised_at)
        )
        began.end(self._ns(until))

    def _ns(self, at: float) -> int:
        return int((at + self._ahead_s) * 1e9)


def _about(exchange: Exchange) -> dict[str, AttributeValue | None]:
    recognition, times = exchange.recognition, exchange.timings
    about: dict[str, AttributeValue | None] = {
        TENANT: exchange.caller.tenant,
        REQUEST_MODEL: exchange.logged_model,
        FIRST_CHUNK_S: times.first_byte_at - times.received_at if times.first_byte_at is not None else None,
    }
    if recognition is not None:
        about |= {
            CONVERSATION: recognition.session_id,
            FAMILY: recognition.family_id,
            PARENT: recognition.parent_id,
            TURN: recognition.turn_index,
            KIND: recognition.kind.value,
        }
    return about


def _usage(usage: Usage) -> dict[str, AttributeValue | None]:
    return {
        INPUT_TOKENS: usage.prompt_tokens,
        CACHED_TOKENS: usage.cached_tokens,
        OUTPUT_TOKENS: usage.output_tokens,
    }


def _known(attributes: dict[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value not in (None, "")}
