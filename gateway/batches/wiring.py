"""Durable batches on the gateway's own path, which their lines take as clients who can wait."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from gateway.batches.asking import LineKeys
from gateway.batches.service import Surroundings, serving
from gateway.handler import Path
from gateway.identity import Identity
from gateway.sessions import Sessions
from gateway.transport import Handler
from policies.lineage import Lineage
from policies.types import SessionEnded
from tool_runtime.runtime import ToolRuntime

LINE_DEADLINE_S = 6 * 3600.0
"""Of one attempt to answer a line of a batch."""


def batches_on(path: Path, secret: bytes, runtime: ToolRuntime | None) -> AbstractAsyncContextManager[Handler]:
    """The API of batches. `secret`: of identity; `runtime`: of the gateway's tools."""
    around = Surroundings(
        path_of_lines(path, secret).handle,
        path.keys,
        lambda: path.gate.view(counts_sessions=False),
        path.wrong_model,
        runtime,
        lambda session_id: path.gate.tell(SessionEnded(session_id)),
        path.observer.metrics.registry,
        path.settings.limits.body_bytes,
        path.clock,
    )
    return serving(path.settings.batches, around)


def path_of_lines(path: Path, secret: bytes) -> Path:
    """The same path without the bounds that clients' timers impose, and with a memory of its own for sessions:
    tens of thousands of lines must not make it forget those of agents."""
    policy = path.settings.policy.model_copy(update={"max_wait_plain_s": LINE_DEADLINE_S})
    patient = path.settings.model_copy(update={"policy": policy})
    max_sessions, ttl_s = 4 * patient.batches.in_flight, patient.identity.session_ttl_s
    identity = Identity(Lineage(max_sessions, ttl_s), secret)
    identity.tools_first = path.identity.tools_first
    forward = path.answering.forward
    forward = replace(forward, timeouts=replace(forward.timeouts, first_byte_s=LINE_DEADLINE_S))
    answering = replace(path.answering, forward=forward, settings=patient, plain_deadline_s=LINE_DEADLINE_S)
    return replace(
        path,
        settings=patient,
        keys=LineKeys(path.keys),
        identity=identity,
        sessions=Sessions(max_sessions, ttl_s),
        answering=answering,
        toolbox=None,
        plain=replace(path.plain, forward=forward),
    )
