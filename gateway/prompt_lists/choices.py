"""One answer out of the answers to the parts. Pure.

Law: prompt p of the client's list has the choices p * n to p * n + n - 1, however the list was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.dialects import canonical
from gateway.dialects.failures import openai_error
from gateway.dialects.prompt_parts import Part


class BadPart(Exception):
    """An engine's answer does not have the choices that it should."""


class Choices:
    """Collects whole answers."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._found: dict[int, Json] = {}
        self.frame: Json = {}
        """Of the first answer: all but its choices and its usage."""
        self.usage: Json = {}

    def add(self, part: Part, body: Json) -> None:
        """Raises BadPart; then nothing was added."""
        choices = {fields.integer(choice, "index"): choice for choice in canonical.objects(body.get("choices"))}
        if set(choices) != set(range(len(part.indexes) * self._n)):
            raise BadPart
        for local, choice in choices.items():
            assert local is not None
            index = index_of(part, local, self._n)
            self._found[index] = {**choice, "index": index}
        self.frame = self.frame or {key: value for key, value in body.items() if key not in ("choices", "usage")}
        self.usage = added(self.usage, fields.obj(body, "usage"))

    def fail(self, index: int, failure: Failure) -> None:
        """A prompt has no answer, and says why."""
        for choice in failed(index, self._n, failure):
            self._found[choice["index"]] = choice

    def body(self, about: Json) -> bytes:
        """The whole answer; `about` wins over what an engine said of itself."""
        choices = [self._found[index] for index in sorted(self._found)]
        return orjson.dumps({**self.frame, **about, "choices": choices, "usage": self.usage})


def index_of(part: Part, local: int, n: int) -> int:
    """Where a part's choice stands in the whole answer."""
    prompt, copy = divmod(local, n)
    return part.indexes[prompt] * n + copy


def failed(index: int, n: int, failure: Failure) -> list[Json]:
    """The choices of a prompt that has no answer."""
    error = openai_error(failure)
    frame = {"text": "", "logprobs": None, "finish_reason": "error", "error": error}
    return [{"index": index * n + copy, **frame} for copy in range(n)]


def added(a: Json, b: Mapping[str, Any]) -> Json:
    """Sums of numbers, at every depth."""
    total = dict(a)
    for key, value in b.items():
        if isinstance(value, dict):
            total[key] = added(fields.obj(total, key), value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            before = total.get(key)
            total[key] = value + (before if isinstance(before, int | float) else 0)
        else:
            total.setdefault(key, value)
    return total
