"""What a tool returns, as the text that the model reads: strings as they are, else JSON; cut if too long."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_core import PydanticSerializationError, to_json

from tool_runtime.types import Effect, OutcomeUnknown, Refused, Status, Tool, ToolError


def text_of(value: object) -> str:
    """Raises ToolError for a value that is not JSON. Dataclasses, models, dates, enums and sets are."""
    if isinstance(value, str):
        return value
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolError(f"The tool returned a {type(value).__name__} that is not JSON: {error}") from None


def capped(text: str, max_bytes: int) -> tuple[str, bool]:
    """The text, cut between two characters and marked if its UTF-8 is longer than `max_bytes`; whether it was cut.
    Halves of surrogate pairs, which nothing can send, become question marks."""
    if text.isascii() and len(text) <= max_bytes:
        return text, False
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return data.decode(), False
    kept = data[:max_bytes].decode("utf-8", "ignore")
    return f"{kept}\n[truncated: the first {len(kept.encode())} of {len(data)} bytes]", True


# ---- how an execution ended, and the words in which a model is told of it

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
