"""How an execution ended, and the words in which a model is told of it."""

from __future__ import annotations

from dataclasses import dataclass

from tool_runtime.output import capped, text_of
from tool_runtime.types import Effect, OutcomeUnknown, Refused, Status, Tool, ToolError

LOST = (OutcomeUnknown, TimeoutError, ConnectionError)
"""Errors after which nobody can say whether the call took effect."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one execution; everybody who waits for it gets the same."""

    status: Status
    text: str
    is_truncated: bool = False
    seconds: float = 0.0
    error: str = ""
    """Class of what the tool raised."""


def outcome_of(tool: Tool, value: object, seconds: float) -> Outcome:
    """Of what a tool returned, or of the exception that it raised."""
    if not isinstance(value, BaseException):
        try:
            text, is_truncated = capped(text_of(value), tool.limits.max_result_bytes)
            return Outcome(Status.OK, text, is_truncated, seconds)
        except ToolError as error:
            value = error
    error_class = type(value).__name__
    told = str(value) if isinstance(value, ToolError) else f"{error_class}: {value}"
    status = Status.REFUSED if isinstance(value, Refused) else Status.ERROR
    if isinstance(value, LOST) and tool.effect is Effect.DESTRUCTIVE:
        status, told = Status.UNKNOWN, f"{told}\n{not_known(tool)}"
    text, is_truncated = capped(f"Error: {told}", tool.limits.max_result_bytes)
    return Outcome(status, text, is_truncated, seconds, error_class)


def not_started(tool: Tool, waited_s: float) -> Outcome:
    """For a caller whose time was over while the call still waited for a place."""
    return Outcome(
        Status.TIMEOUT, f"Error: {tool.name} could not be started within {waited_s:.3g} s; it was not run."
    )


def given_up(tool: Tool, waited_s: float) -> Outcome:
    """For a caller whose time was over while the call ran."""
    text = f"Error: {tool.name} gave no result within {waited_s:.3g} s."
    if tool.effect is Effect.DESTRUCTIVE:
        return Outcome(Status.UNKNOWN, f"{text}\n{not_known(tool)}")
    return Outcome(Status.TIMEOUT, text)


def stopped(tool: Tool, has_begun: bool) -> Outcome:
    """For those who wait when the runtime closes, or when what executes calls was lost."""
    text = f"Error: {tool.name} was stopped before it gave a result."
    if has_begun and tool.effect is Effect.DESTRUCTIVE:
        return Outcome(Status.UNKNOWN, f"{text}\n{not_known(tool)}")
    return Outcome(Status.ERROR, text)


def not_known(tool: Tool) -> str:
    return (
        f"The outcome of this call is unknown: {tool.name} may have run, may have taken effect, "
        "and was not run again. Check before you repeat it."
    )
