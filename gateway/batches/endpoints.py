"""What lines may ask for: the paths of the API, and agent runs; how each is checked, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.batches import agent_runs, runner
from gateway.batches.agent_runs import AgentRuns
from gateway.batches.front import AGENT_RUNS
from gateway.batches.line_executor import LineExecutor
from gateway.batches.lines import Endpoint
from gateway.batches.objects import Batch, Finished, Line
from gateway.dialects import BY_PATH
from gateway.tools.toolbox import matches
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Tools

_ONE_CALL = (("x-turngate-remaining-turns", "0"), ("x-turngate-final", "1"))
"""The session of a single request ends with its answer, so that it keeps no cache."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """For the lines of all batches."""

    asking: LineExecutor
    agent_runs: AgentRuns
    runtime: ToolRuntime | None
    wrong_model: Callable[[str], str | None]

    def of(self, batch: Batch) -> Endpoint:
        """What its lines are checked against."""
        url = batch.endpoint
        if url == AGENT_RUNS:
            tools = self._tools(batch)
            return Endpoint(url, lambda body: agent_runs.check(body, tools), agent_runs.script, self.wrong_model)
        dialect = BY_PATH[url]
        return Endpoint(url, dialect.check, dialect.script, self.wrong_model)

    async def answer(self, batch: Batch, line: Line, body: bytes) -> Finished:
        """What becomes of a line."""
        if batch.endpoint == AGENT_RUNS:
            return await self.agent_runs.answer(batch, line, body, self._tools(batch))
        reply = await self.asking.answer(batch, line, batch.endpoint, body, _ONE_CALL)
        return runner.finished(line.custom_id, reply)

    def _tools(self, batch: Batch) -> Tools:
        """Those that the key of the batch may use."""
        tools = self.runtime.tools if self.runtime is not None else {}
        return {name: tool for name, tool in tools.items() if matches(name, batch.allowed_tools)}
