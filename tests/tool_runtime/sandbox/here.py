"""Whether this machine has a sandbox."""

from __future__ import annotations

from functools import cache

import pytest

from tool_runtime.sandbox.sandbox import Sandbox, SandboxLimits


@cache
def missing() -> str:
    """Why there is no sandbox on this machine; empty if there is one."""
    try:
        Sandbox(SandboxLimits())
    except ValueError as error:
        return str(error)
    return ""


in_sandbox = pytest.mark.skipif(missing() != "", reason="there is no sandbox here")
