"""How an execution ended, as the text that the model reads: a tool's value, an error, a time-out."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_core import PydanticSerializationError, to_json

from tool_runtime.types import Effect, OutcomeUnknown, Refused, Status, Tool, ToolError


def text_of(value: object) -> str:
    """Return a string as it is, and any other value as JSON: dataclasses, models, dates, enums and sets too.

    Raises ToolError for a value that has no JSON form.
    """
    if isinstance(value, str):
        return value
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolError(f"The tool returned a {type(value).__name__} that is not JSON: {error}") from None


def capped(text: str, max_bytes: int) -> tuple[str, bool]:
    """Return the text, cut and marked if its UTF-8 exceeds `max_bytes`, and whether it was cut.

    Lone surrogates cannot be sent and become question marks.
    """
    if text.isascii() and len(text) <= max_bytes:
        return text, False
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return data.decode(), False
    kept = data[:max_bytes].decode("utf-8", "ignore")
    return f"{kept}\n[truncated: the first {len(kept.encode())} of {len(data)} bytes]", True


LOST = (OutcomeUnknown, TimeoutError, ConnectionError)
"""Errors that leave open whether the call took effect."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one execution, equal for all calls that wait for it."""

    status: Status
    text: str
    is_truncated: bool = False
    seconds: float = 0.0
    error: str = ""
    """Class of the exception that the tool raised."""


def outcome_of(tool: Tool, value: object, seconds: float) -> Outcome:
    """Return the outcome for the value that a tool returned, or for the exception that it raised."""
    if not isinstance(value, BaseException):
        try:
            text, is_truncated = capped(text_of(value), tool.limits.max_result_bytes)
            return Outcome(Status.OK, text, is_truncated, seconds)
        except ToolError as error:
            value = error
    error_class = type(value).__name__
    reason = str(value) if isinstance(value, ToolError) else f"{error_class}: {value}"
    status = Status.REFUSED if isinstance(value, Refused) else Status.ERROR
    if isinstance(value, LOST) and tool.effect is Effect.DESTRUCTIVE:
        status, reason = Status.UNKNOWN, f"{reason}\n{not_known(tool)}"
    text, is_truncated = capped(f"Error: {reason}", tool.limits.max_result_bytes)
    return Outcome(status, text, is_truncated, seconds, error_class)


def not_started(tool: Tool, waited_s: float) -> Outcome:
    """Return the outcome for a caller whose time ended while the call waited for a place."""
    return Outcome(
        Status.TIMEOUT, f"Error: {tool.name} could not be started within {waited_s:.3g} s; it was not run."
    )


def given_up(tool: Tool, waited_s: float) -> Outcome:
    """Return the outcome for a caller whose time ended while the call ran."""
    return _lost(tool, f"Error: {tool.name} gave no result within {waited_s:.3g} s.", Status.TIMEOUT)


def stopped(tool: Tool, has_begun: bool) -> Outcome:
    """Return the outcome for callers that still wait when the runtime closes, or when its process was lost."""
    return _lost(tool, f"Error: {tool.name} was stopped before it gave a result.", Status.ERROR, has_begun)


def _lost(tool: Tool, text: str, otherwise: Status, has_begun: bool = True) -> Outcome:
    if has_begun and tool.effect is Effect.DESTRUCTIVE:
        return Outcome(Status.UNKNOWN, f"{text}\n{not_known(tool)}")
    return Outcome(otherwise, text)


def not_known(tool: Tool) -> str:
    """Return the sentence that keeps a model from repeating a call that may have taken effect."""
    return (
        f"The outcome of this call is unknown: {tool.name} may have run, may have taken effect, "
        "and was not run again. Check before you repeat it."
    )
