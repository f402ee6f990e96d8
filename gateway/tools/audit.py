"""Tells what became of tool calls: metrics, and one audit line per execution and refusal. Never content."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.core.excerpt import excerpt
from gateway.core.fields import Json
from gateway.telemetry.metrics import Bounded
from tool_runtime.types import Call, Context, Execution, Origin, Result, Status

LOG = logging.getLogger("turngate.tool")

BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_MAX_NAME_CHARS = 64
UNKNOWN = "unknown"
"""Label of a name that the model made up: those are not bounded."""


class ToolAudit:
    """Told by the ToolRuntime, and by loops that refuse a call before it gets there."""

    def __init__(self, registry: CollectorRegistry, is_tool: Callable[[str], bool]) -> None:
        """`is_tool`: whether there is a tool of this name now."""

        def counter(name: str, text: str, *labels: str) -> Bounded[Counter]:
            return Bounded(Counter(f"turngate_tool_{name}", text, ("tool", *labels), registry=registry))

        self._is_tool = is_tool
        self._requested = counter("requested", "Calls of our tools, by models")
        self._executed = counter("executed", "Executions of our tools")
        self._coalesced = counter("coalesced", "Calls that shared a running execution")
        self._cached = counter("cached", "Calls that were answered from the cache")
        self._failed = counter("failed", "Calls that did not end well", "status")
        self._saved = counter("saved_seconds", "Execution time that sharing saved")
        took = "Time of an execution"
        self._seconds = Bounded(
            Histogram("turngate_tool_seconds", took, ("tool",), buckets=BUCKETS_S, registry=registry)
        )

    def executed(self, execution: Execution) -> None:
        """A `ToolRuntime.audit`."""
        if execution.status is not Status.REFUSED:
            label = self._label(execution.tool)
            self._executed(label).inc()
            self._seconds(label).observe(execution.seconds)
        level = logging.INFO if execution.status is Status.OK else logging.WARNING
        LOG.log(level, "tool", extra={"fields": _line(execution)})

    def answered(self, result: Result) -> None:
        """A `ToolRuntime.answered`."""
        label = self._label(result.call.name)
        self._requested(label).inc()
        if result.origin is Origin.COALESCED:
            self._coalesced(label).inc()
        elif result.origin is Origin.CACHED:
            self._cached(label).inc()
        if result.status is not Status.OK:
            self._failed(label, result.status.value).inc()
        self._saved(label).inc(result.saved_s)

    def refused(self, call: Call, context: Context, now: float) -> Result:
        """The result of a call that its request may not make."""
        digest = sha256(call.arguments.encode("utf-8", "surrogatepass")).hexdigest()
        execution = Execution(
            tool=excerpt(call.name, _MAX_NAME_CHARS),
            source="",
            call_id=call.id,
            context=context,
            arguments_sha256=digest,
            started_at=now,
            seconds=0.0,
            status=Status.REFUSED,
            shared_by=1,
        )
        self.executed(execution)
        result = Result(
            call=call, status=Status.REFUSED, text="Error: this tool cannot be called here, or not again now."
        )
        self.answered(result)
        return result

    def _label(self, name: str) -> str:
        return name if self._is_tool(name) else UNKNOWN


def _line(execution: Execution) -> Json:
    context = execution.context
    told = {
        "tool": execution.tool,
        "source": execution.source,
        "status": execution.status,
        "error": execution.error,
        "tenant": context.tenant,
        "key": context.key_id,
        "session": context.session_id,
        "turn": context.turn_id,
        "call": excerpt(execution.call_id),
        "arguments_sha256": execution.arguments_sha256,
        "ms": round(execution.seconds * 1000, 1),
        "shared_by": execution.shared_by,
    }
    return {key: value for key, value in told.items() if value not in (None, "")}
