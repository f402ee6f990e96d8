"""Calls a tool as a session does: through the runtime, with the arguments as JSON text."""

from __future__ import annotations

import json
import time
from typing import Any

from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Execution, Result, Tool


async def called(tool: Tool, **arguments: Any) -> Result:
    """The result, of which the audit has told the same."""
    audited: list[Execution] = []
    runtime = ToolRuntime([tool], clock=time.monotonic, audit=audited.append)
    try:
        result = await runtime.run(Call("1", tool.name, json.dumps(arguments)), Context("acme", "ann"))
    finally:
        await runtime.close()
    assert [execution.status for execution in audited] == [result.status]
    return result
