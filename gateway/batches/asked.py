"""What a request for a file or a batch asks for, or why it is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import parse_qs

import orjson

from gateway.batches.store import ListPage
from gateway.core import fields
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.fields import Json

BATCH_FILE_EXPIRES_S = 30 * 86_400
SHORTEST_EXPIRY_S, LONGEST_EXPIRY_S = 3_600, 30 * 86_400
LONGEST_WINDOW_S = 30 * 86_400
MAX_PAIRS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")


@dataclass(frozen=True, slots=True)
class BatchAsked:
    input_file_id: str
    endpoint: str
    completion_window: str
    window_s: int
    metadata: Mapping[str, str] | None
    output_expires_s: int | None


def refuse(message: str, param: str | None = None, status: int = 400, code: str | None = None) -> NoReturn:
    """Raises Refused."""
    outcome = Outcome.NOT_FOUND if status == 404 else Outcome.BAD_REQUEST
    raise Refused(outcome, Failure(status, "invalid_request_error", message, param, code))


def missing(param: str) -> NoReturn:
    refuse(f"Missing required parameter: '{param}'.", param, code="missing_required_parameter")


def batch(raw: bytes, endpoints: tuple[str, ...]) -> BatchAsked:
    """Raises Refused."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        refuse("The body must be a JSON object.")
    for key in ("input_file_id", "endpoint", "completion_window"):
        if body.get(key) is None:
            missing(key)
        if not isinstance(body[key], str):
            refuse(f"'{key}' must be a string.", key)
    endpoint = body["endpoint"]
    if endpoint not in endpoints:
        known = ", ".join(f"'{name}'" for name in endpoints)
        refuse(f"Invalid value: '{endpoint}'. Supported values are: {known}.", "endpoint", code="invalid_value")
    policy = body.get("output_expires_after")
    return BatchAsked(
        body["input_file_id"],
        endpoint,
        body["completion_window"],
        _window_s(body["completion_window"]),
        _metadata(body),
        None if policy is None else expires_s(policy, "output_expires_after"),
    )


def expires_s(policy: Any, param: str) -> int:
    """Of `{"anchor": "created_at", "seconds": ...}`. Raises Refused."""
    policy = policy if isinstance(policy, dict) else {}
    if policy.get("anchor") != "created_at":
        refuse("The only anchor is 'created_at'.", f"{param}.anchor", code="invalid_value")
    seconds = policy.get("seconds")
    if isinstance(seconds, str) and seconds.isdecimal():  # form fields are text
        seconds = int(seconds)
    if not isinstance(seconds, int) or not SHORTEST_EXPIRY_S <= seconds <= LONGEST_EXPIRY_S:
        text = f"'seconds' must be between {SHORTEST_EXPIRY_S} (1 hour) and {LONGEST_EXPIRY_S} (30 days)."
        refuse(text, f"{param}.seconds", code="invalid_value")
    return seconds


def page(query: Mapping[str, str], default: int, most: int) -> ListPage:
    """Raises Refused."""
    limit, order = query.get("limit", str(default)), query.get("order", "desc")
    if not limit.isdecimal() or len(limit) > 9 or not 1 <= int(limit) <= most:
        refuse(f"'limit' must be between 1 and {most}.", "limit", code="invalid_value")
    if order not in ("asc", "desc"):
        refuse("'order' must be 'asc' or 'desc'.", "order", code="invalid_value")
    return ListPage(int(limit), query.get("after") or None, order == "asc")


def query_of(text: str) -> dict[str, str]:
    """The last value of each parameter."""
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}


def _window_s(window: str) -> int:
    """`24h` as in OpenAI's API; other windows in seconds, minutes, hours or days are an extension."""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not 0 < seconds <= LONGEST_WINDOW_S:
        text = f"Invalid value: '{window}'. Give a window such as '24h', '90m' or '7d', at most '30d'."
        refuse(text, "completion_window", code="invalid_value")
    return seconds


def _metadata(body: Json) -> dict[str, str] | None:
    if body.get("metadata") is None:
        return None
    pairs = fields.obj(body, "metadata")
    if not pairs and body["metadata"] != {}:
        refuse("'metadata' must be an object of strings.", "metadata")
    if len(pairs) > MAX_PAIRS:
        refuse(f"'metadata' may have at most {MAX_PAIRS} pairs.", "metadata")
    for key, value in pairs.items():
        if not isinstance(value, str):
            refuse(f"'metadata.{key}' must be a string.", f"metadata.{key}")
        if len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS:
            text = f"A key of 'metadata' has at most {MAX_KEY_CHARS} characters, a value {MAX_VALUE_CHARS}."
            refuse(text, f"metadata.{key}")
    return pairs
