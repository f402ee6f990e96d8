"""Asks a callback URL whether a tool call may run."""

from __future__ import annotations

import orjson

from gateway.core import fields
from gateway.core.fields import Json
from gateway.core.transport import Timeouts, Upstream
from tool_runtime.types import Context, Tool, Verdict

_TIMEOUTS = Timeouts(connect_s=5.0, first_byte_s=600.0, idle_s=30.0)
_MAX_BYTES = 64 * 1024
_ASK_NOBODY = "always"


class Approvals:
    """A `tool_runtime.Approve`: POSTs who asks for what, and reads `{"approved": true}`. Anything else is a no."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def __call__(self, tool: Tool, arguments: Json, context: Context) -> Verdict:
        """Raises what the upstream raises; then the call is refused as well."""
        url = tool.limits.approval
        if url == _ASK_NOBODY:
            return Verdict(False, "it needs approval, and no callback is configured that could give it")
        question = {
            "tool": tool.name,
            "arguments": arguments,
            "tenant": context.tenant,
            "session": context.session_id,
            "turn": context.turn_id,
            "key": context.key_id,
        }
        headers = [("Content-Type", "application/json"), ("Accept-Encoding", "identity")]
        reply = await self._upstream.call("POST", url, headers, orjson.dumps(question), _TIMEOUTS)
        try:
            body = await reply.read(_MAX_BYTES)
        finally:
            reply.close(reuse=False)
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if reply.status != 200 or not isinstance(answer, dict):
            return Verdict(False, "the approval callback did not answer the question")
        if fields.flag(answer, "approved"):
            return Verdict(True)
        return Verdict(False, fields.text(answer, "reason") or "it was not approved")
