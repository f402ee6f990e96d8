"""From the body of a generation request to what the engine runs: prompt, answer, bounds. Refuses as vLLM does."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.fields import Json, flag, integer, items, obj, text
from gateway.embedded.answer import (
    BadScript,
    PlannedAnswer,
    answer_to,
    rendered_chat,
    scripted_answer,
    tokens_from,
    tokens_of,
)
from gateway.embedded.wire import Refusal, bad_request


@dataclass(frozen=True, slots=True)
class Job:
    """A generation request that was understood."""

    prompt: list[bytes]
    """Tokens."""
    answer: PlannedAnswer
    priority: int
    salt: str
    wants_stream: bool
    wants_usage: bool


def job_from(body: Json, is_chat: bool, max_model_len: int, natural_tokens: range) -> Job:
    """Raises Refusal."""
    if body.get("n") not in (None, 1):
        raise bad_request("The embedded engine gives one answer per request: n must be 1.", "n")
    wants_stream, options = flag(body, "stream"), obj(body, "stream_options")
    if options and not wants_stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    priority = body.get("priority") or 0
    if not isinstance(priority, int):
        raise bad_request("priority must be a whole number; lower goes first.", "priority")
    prompt = prompt_tokens(body, is_chat)
    limit = max_tokens(body, len(prompt), max_model_len)
    try:
        script = scripted_answer(body)
    except BadScript as error:
        raise bad_request(str(error), "embedded_script") from None
    answer = answer_to(b"".join(prompt), script, limit, flag(body, "ignore_eos"), natural_tokens)
    wants_usage = wants_stream and flag(options, "include_usage")
    return Job(prompt, answer, priority, text(body, "cache_salt") or "", wants_stream, wants_usage)


def prompt_tokens(body: Json, is_chat: bool) -> list[bytes]:
    """Raises Refusal when there is no prompt in it."""
    if is_chat:
        if not items(body, "messages"):
            raise bad_request("messages must be a list that is not empty.", "messages")
        return tokens_of(rendered_chat(body))
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tokens_of(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(number, int) for number in prompt):
        try:
            return tokens_from(prompt)
        except ValueError as error:
            raise bad_request(str(error), "prompt") from None
    raise bad_request("prompt must be one text, or one list of token ids, and not empty.", "prompt")


def max_tokens(body: Json, num_prompt_tokens: int, max_model_len: int) -> int:
    """The longest answer that was asked for. Raises Refusal when it does not fit behind the prompt."""
    key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    asked = integer(body, key)
    room = max_model_len - num_prompt_tokens
    if asked is None and room >= 1:
        return room
    if asked is not None and asked < 1:
        raise bad_request(f"{key} must be at least 1, got {asked}.", key)
    if asked is None or asked > room:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + (asked or 1)} tokens ({num_prompt_tokens} in the messages, {asked or 1} in the "
            "completion). Please reduce the length of the messages or completion.",
            key,
        )
    return asked


def check_model(body: Json, served: str) -> None:
    """Raises Refusal for another model's name; a request without one is served."""
    asked = text(body, "model")
    if asked is not None and asked != served:
        raise Refusal(404, "NotFoundError", f"The model `{asked}` does not exist.", "model")
