"""First prompts of an agent that runs many times, with and without something volatile near the top."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

WORDS = (
    "read",
    "the",
    "file",
    "before",
    "you",
    "change",
    "it",
    "and",
    "run",
    "all",
    "tests",
    "when",
    "done",
    "say",
    "so",
)


def text(noise: Random, size: int, newline: str = "\n") -> str:
    """Lines of words, numbered at random, so that none comes twice."""
    lines: list[str] = []
    while sum(map(len, lines)) < size:
        words = " ".join(noise.choice(WORDS) for _ in range(noise.randint(5, 14)))
        lines.append(f"{noise.getrandbits(32):08x} {words}.")
    return newline.join(lines)


@dataclass
class Agent:
    """`system` and `messages` make the canonical texts of one first prompt."""

    noise: Random
    num_tools: int = 4

    def __post_init__(self) -> None:
        self.rules = text(self.noise, 12_000)
        self.tools = tuple(
            f'{{"name":"tool{n}","description":"{text(self.noise, 1_000, chr(92) + "n")}"}}'.encode()
            for n in range(self.num_tools)
        )

    def system(self, volatile: str = "") -> bytes:
        return f"You are a careful agent.\n{volatile}{self.rules}".encode()

    def messages(self) -> tuple[bytes, ...]:
        task = text(self.noise, 400, "\\n")
        return (f'["user",{{"content":"{task}"}}]'.encode(),)


def path_line(noise: Random) -> str:
    return f"Working directory: /srv/runs/{noise.getrandbits(64):016x}/repo\n"


LINES: dict[str, Callable[[Random], str]] = {
    "path": path_line,
    "date": lambda noise: f"It is 2026-{noise.randint(1, 12):02}-{noise.randint(1, 28):02}T{noise.random():f}\n",
    "header": lambda noise: f"x-anthropic-billing-header: cch={noise.getrandbits(64):016x}\n",
    "id": lambda noise: f"Session: {noise.getrandbits(64):016x}-{noise.getrandbits(32):08x}\n",
}
