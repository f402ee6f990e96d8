"""What a tool returns, as the text that the model reads: strings as they are, else JSON; cut if too long."""

from __future__ import annotations

from pydantic_core import PydanticSerializationError, to_json

from tool_runtime.types import ToolError


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
