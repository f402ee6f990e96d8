"""Cuts a list of prompts into parts whose prompts share a prefix. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gateway.core.fields import Json

Prompt: TypeAlias = str | list[int]
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Prompts that are asked in one request."""

    indexes: tuple[int, ...]
    """Where each stands in the client's list."""
    prompts: tuple[Prompt, ...]

    def halves(self) -> tuple[Part, Part]:
        middle = len(self.indexes) // 2
        return (
            Part(self.indexes[:middle], self.prompts[:middle]),
            Part(self.indexes[middle:], self.prompts[middle:]),
        )

    def only(self, positions: Sequence[int]) -> Part:
        """Those at these positions of the part."""
        return Part(tuple(self.indexes[p] for p in positions), tuple(self.prompts[p] for p in positions))


def prompts_of(body: Json) -> list[Prompt] | None:
    """The prompts of a request for completions that has several; None for one prompt, or what is no such list."""
    prompts = body.get("prompt")
    if not isinstance(prompts, list) or len(prompts) < 2:
        return None
    return prompts if all(isinstance(p, str) for p in prompts) or all(map(_is_tokens, prompts)) else None


def longest_chars(body: Json) -> int | None:
    """Length of the longest of several prompts."""
    prompts = prompts_of(body)
    return None if prompts is None else max(map(_chars, prompts))


def cut(prompts: Sequence[Prompt], max_prompts: int, max_chars: int) -> Iterator[Part]:
    """Parts of the prompts, in the order that puts common prefixes side by side. A part has at most `max_prompts`
    and, with what neighbours share counted once, `max_chars`; always one prompt."""
    order = sorted(range(len(prompts)), key=lambda index: prompts[index])
    part: list[int] = []
    chars = 0
    for index in order:
        prompt = prompts[index]
        own_chars = _chars(prompt) - (_chars(common_prefix(prompts[part[-1]], prompt)) if part else 0)
        if part and (len(part) == max_prompts or chars + own_chars > max_chars):
            yield _part(prompts, part)
            part, chars, own_chars = [], 0, _chars(prompt)
        part.append(index)
        chars += own_chars
    if part:
        yield _part(prompts, part)


def _part(prompts: Sequence[Prompt], indexes: list[int]) -> Part:
    return Part(tuple(indexes), tuple(prompts[index] for index in indexes))


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)


def _chars(prompt: Prompt) -> int:
    return len(prompt) if isinstance(prompt, str) else CHARS_PER_TOKEN * len(prompt)


def common_prefix(a: Prompt, b: Prompt) -> Prompt:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return a[:low]
