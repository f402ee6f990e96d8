"""Durable batches on the gateway's own path, which their lines take as clients who can wait."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from gateway.batches.line_executor import LineKeys
from gateway.batches.service import BatchContext, serving
from gateway.config.live_settings import LiveSettings
from gateway.core.transport import Handler
from gateway.request.handler import RequestHandler
from gateway.sessions.identity import Identity
from gateway.sessions.session_table import Sessions
from policies.recognition.lineage import Lineage
from policies.types import SessionEnded
from tool_runtime.runtime import ToolRuntime


def batches_on(
    path: RequestHandler, settings: LiveSettings, secret: bytes, runtime: ToolRuntime | None
) -> AbstractAsyncContextManager[Handler]:
    """The API of batches. `secret`: of identity; `runtime`: of the gateway's tools."""
    around = BatchContext(
        path_of_lines(path, settings, secret).handle,
        path.keys,
        lambda: path.gate.view(counts_sessions=False),
        path.wrong_model,
        runtime,
        lambda session_id: path.gate.tell(SessionEnded(session_id)),
        path.observer.metrics.registry,
        lambda: settings.current.limits.body_bytes,
        path.clock,
    )
    return serving(settings.current.batches, around)


def path_of_lines(path: RequestHandler, settings: LiveSettings, secret: bytes) -> RequestHandler:
    """The same path without the bounds that clients' timers impose, and with a memory of its own for sessions:
    tens of thousands of lines must not make it forget those of agents."""
    at_start = settings.current
    max_sessions, ttl_s = 4 * at_start.batches.in_flight, at_start.identity.session_ttl_s
    identity = Identity(Lineage(max_sessions, ttl_s), secret)
    identity.tools_first = path.identity.tools_first
    return replace(
        path,
        settings=settings.of_lines,
        keys=LineKeys(path.keys),
        identity=identity,
        sessions=Sessions(max_sessions, ttl_s),
        toolbox=None,
    )
