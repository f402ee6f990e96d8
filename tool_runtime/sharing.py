"""What two calls must have in common to share an execution, and what a shared execution is told of its callers."""

from __future__ import annotations

from hashlib import blake2b

from tool_runtime.arguments import Arguments, canonical_text
from tool_runtime.types import Context, Effect, Refused, Scope, Tool


def told(tool: Tool, context: Context) -> Context | None:
    """As much of the context as everybody has who may share an execution. None: it may not be shared."""
    history = context.history if tool.is_stateful else None
    if tool.effect is Effect.DESTRUCTIVE or (tool.is_stateful and history is None):
        return None
    match tool.limits.scope:
        case Scope.GLOBAL:
            return Context("", history=history)
        case Scope.TENANT:
            return Context(context.tenant, history=history)
        case Scope.SESSION:
            return Context(context.tenant, context.session_id, history=history) if context.session_id else None


def key_of(tool: Tool, arguments: Arguments, shared: Context) -> bytes:
    """Equal for calls that give the same result. It covers all that the execution is told, so that whoever gets
    a result of another's call would have got it from a call of their own. Raises Refused if `tool.key` fails."""
    try:
        same = arguments.canonical if tool.key is None else tool.key(arguments.value)
    except Exception as error:
        raise Refused(f"{tool.name} cannot tell its calls apart: {type(error).__name__}: {error}") from None
    digest = blake2b(digest_size=32)
    for part in (
        tool.source,
        tool.name,
        shared.tenant,
        shared.session_id,
        same,
        *map(canonical_text, shared.history or ()),
    ):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
