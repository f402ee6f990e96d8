"""Laws of traces at a running gateway, as an OTLP collector receives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import DONE, FakeEngine, chunk, finish, replies, streams, usage
from tests.path.toolkit import Bench, Says, says

SECRET = "a word of the prompt"
ASK = {"model": "m", "messages": [{"role": "user", "content": SECRET}]}
TRACE_ID, CALLER_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{CALLER_ID}-01"


@dataclass
class Collector:
    """Serves OTLP/HTTP from a thread: the exporter's last batch blocks the loop of the gateway."""

    port: int = 0
    raw: bytes = b""
    service: str = ""
    spans: list[Span] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.service = attributes(resource.resource)["service.name"]
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span


def attributes(holder: Any) -> dict[str, Any]:
    return {pair.key: value(pair.value) for pair in holder.attributes}


def value(told: AnyValue) -> Any:
    kind = told.WhichOneof("value")
    return [value(each) for each in told.array_value.values] if kind == "array_value" else getattr(told, str(kind))


@pytest.fixture
def collector() -> Iterator[Collector]:
    told = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            told.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *told: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


async def traced(start: Start, engine: FakeEngine, collector: Collector, **sections: Any) -> Gateway:
    tracing = {"endpoint": f"http://127.0.0.1:{collector.port}", "service_name": "gate-1"}
    return await start(engine, tracing=tracing | sections.pop("tracing", {}), **sections)


async def test_a_request_is_one_trace_under_the_callers_with_its_wait_and_its_model_call(
    start: Start, engine: FakeEngine, collector: Collector
) -> None:
    gateway = await traced(start, engine, collector)
    answer = await gateway.ask(ASK | {"max_tokens": 9}, traceparent=PARENT, tracestate="a=b")
    async with gateway.get("/v1/turngate/receipts/" + answer.headers["X-Turngate-Receipt"]) as response:
        assert (await response.json())["trace"] == TRACE_ID
    await gateway.app.stop()
    root, wait, call = (collector.named(n) for n in ("POST /v1/chat/completions", "turngate.wait", "chat m"))
    assert collector.service == "gate-1"
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert root.parent_span_id.hex() == CALLER_ID
    assert wait.parent_span_id == call.parent_span_id == root.span_id
    assert root.start_time_unix_nano <= wait.start_time_unix_nano <= wait.end_time_unix_nano
    assert call.start_time_unix_nano <= call.end_time_unix_nano <= root.end_time_unix_nano
    assert (
        attributes(call).items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": "m",
            "gen_ai.response.model": "m",
            "gen_ai.request.max_tokens": 9,
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 2,
            "server.address": "127.0.0.1",
            "server.port": engine.port,
            "turngate.replica": "e1",
        }.items()
    )
    told = attributes(root)
    assert (told["turngate.outcome"], told["turngate.request.id"]) == (
        "answered",
        answer.headers["X-Turngate-Receipt"],
    )
    assert told["gen_ai.conversation.id"] == answer.headers["X-Turngate-Session"]
    assert attributes(wait)["turngate.reason"] == answer.headers["X-Turngate-Reason"]


async def test_the_engine_is_given_the_model_calls_context_in_the_place_of_the_clients(
    start: Start, engine: FakeEngine, collector: Collector
) -> None:
    gateway = await traced(start, engine, collector)
    await gateway.ask(ASK, traceparent=PARENT, tracestate="a=b")
    await gateway.app.stop()
    (call,) = engine.calls
    assert call.headers.getall("traceparent") == [f"00-{TRACE_ID}-{collector.named('chat m').span_id.hex()}-01"]
    assert call.headers.getall("tracestate") == ["a=b"]


async def test_without_traces_the_clients_context_passes_untouched(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    await gateway.ask(ASK, traceparent=PARENT)
    assert engine.calls[0].headers.getall("traceparent") == [PARENT]


async def test_a_caller_that_does_not_sample_is_not_traced(
    start: Start, engine: FakeEngine, collector: Collector
) -> None:
    gateway = await traced(start, engine, collector)
    await gateway.ask(ASK, traceparent=PARENT[:-1] + "0")
    await gateway.app.stop()
    assert collector.spans == []
    assert engine.calls[0].headers["traceparent"] == PARENT[:-1] + "0"


async def test_a_malformed_context_begins_a_trace_of_its_own(
    start: Start, engine: FakeEngine, collector: Collector
) -> None:
    gateway = await traced(start, engine, collector)
    await gateway.ask(ASK, traceparent="00-nonsense")
    await gateway.app.stop()
    assert collector.named("POST /v1/chat/completions").parent_span_id == b""


async def test_each_attempt_is_a_span_and_a_failed_one_an_error(start: Start, collector: Collector) -> None:
    engines = FakeEngine(plays=[replies(500, b"{}")]), FakeEngine(plays=[replies(500, b"{}")])
    tracing = {"endpoint": f"http://127.0.0.1:{collector.port}"}
    gateway = await start(*engines, tracing=tracing)
    answer = await gateway.ask(ASK)
    await gateway.app.stop()
    calls = [span for span in collector.spans if span.name == "chat m"]
    root = collector.named("POST /v1/chat/completions")
    assert answer.status >= 500
    assert [attributes(span)["turngate.attempt"] for span in calls] == [1, 2]
    assert [span.status.code for span in (*calls, root)] == [Status.STATUS_CODE_ERROR] * 3
    assert attributes(root)["error.type"] == attributes(root)["turngate.outcome"]


async def test_a_refused_request_is_traced_without_a_model_call(
    start: Start, engine: FakeEngine, collector: Collector
) -> None:
    gateway = await traced(start, engine, collector)
    await gateway.ask("no object")
    await gateway.app.stop()
    assert attributes(collector.named("POST /v1/chat/completions"))["turngate.outcome"] == "bad_request"
    assert len(collector.spans) == 1


async def test_a_stream_is_traced_to_its_end_and_no_span_holds_content(
    start: Start, engine: FakeEngine, collector: Collector
) -> None:
    answer = "a word of the answer"
    engine.plays = [streams([chunk(content=answer), finish(), usage(100, 64), DONE])]
    gateway = await traced(start, engine, collector)
    await gateway.ask(ASK | {"stream": True})
    await gateway.app.stop()
    told = attributes(collector.named("chat m"))
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.cache_read.input_tokens"]) == (100, 64)
    assert collector.named("chat m").status.code != Status.STATUS_CODE_ERROR
    for words in (SECRET, answer):
        assert words.encode() not in collector.raw


async def test_tools_of_the_gateway_are_spans_between_the_model_calls(
    start: Start, engine: FakeEngine, collector: Collector
) -> None:
    bench = Bench()
    engine.plays = [says(Says("I look.", (("c1", "search", '{"q": "a secret"}'),))), says(Says("It is there."))]
    gateway = await traced(start, engine, collector, tools=bench.settings())
    await gateway.ask(ASK | {"stream": True})
    await gateway.app.stop()
    tool, root = collector.named("execute_tool search"), collector.named("POST /v1/chat/completions")
    first, second = sorted(
        (span for span in collector.spans if span.name == "chat m"), key=lambda span: span.start_time_unix_nano
    )
    assert tool.parent_span_id == first.parent_span_id == second.parent_span_id == root.span_id
    assert tool.end_time_unix_nano <= second.start_time_unix_nano
    assert (
        attributes(tool).items()
        >= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.id": "c1",
            "turngate.tool.status": "ok",
        }.items()
    )
    assert b"a secret" not in collector.raw
