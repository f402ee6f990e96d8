"""Runs Python code that a model wrote, in a sandbox. It cannot be built where there is no sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tool_runtime.loading import read_options
from tool_runtime.sandbox import sandbox
from tool_runtime.tools import GRACE_S
from tool_runtime.types import Context, Effect, Json, Limits, Tool, ToolError

MAX_CODE_CHARS = 100_000
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonEvalOptions(sandbox.SandboxLimits):
    """Settings of `python_eval`: the limits of a run, its interpreter and its sandbox."""

    python: str = ""
    """An interpreter, such as one of a virtual environment with the packages that code may use. Empty: the
    gateway's interpreter without its packages."""
    bwrap: str = "bwrap"


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError if there is no working sandbox."""
    options = read_options(PythonEvalOptions, settings, "python_eval")
    try:
        box = sandbox.Sandbox(options, options.python, options.bwrap)
    except ValueError as error:
        raise ValueError(f"python_eval runs code only in a sandbox, and there is none: {error}") from None

    async def run(arguments: Json, context: Context) -> str:
        ended = await box.run(arguments["code"])
        if ended.status == 0:
            return ended.output or "(no output)"
        if ended.has_too_many_files:
            why = f"stopped for more than {options.files} files"
        elif ended.status is None:
            why = f"stopped after {options.timeout_s:g} s or {options.output_bytes} bytes of output"
        else:
            why = f"ended with status {ended.status}"
        raise ToolError(f"{ended.output}\n[{why}]".lstrip())

    return Tool(
        name="python_eval",
        description="Run Python code and get its output, and the value of its last expression. "
        "Each run starts fresh: no network, no files but an empty /tmp.",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "maxLength": MAX_CODE_CHARS}},
            "required": ["code"],
            "additionalProperties": False,
        },
        run=run,
        # A run changes nothing outside the sandbox. But equal code may give different results, as with random
        # numbers, so each caller gets a run of its own.
        effect=Effect.DESTRUCTIVE,
        limits=Limits(timeout_s=options.timeout_s + GRACE_S, concurrency=_AT_ONCE),
        source="builtin",
    )
