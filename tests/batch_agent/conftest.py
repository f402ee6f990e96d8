"""A scripted gateway, and batches that run against it."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from batch_agent import AgentResult, BatchAgent
from tests.batch_agent.scripted import Scripted
from tests.clock import clock as clock


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test does not set names a gateway."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def gateway() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    await scripted.start()
    yield scripted
    await scripted.stop()


Run = Callable[..., Awaitable[list[AgentResult]]]


@pytest.fixture
def run(gateway: Scripted) -> Run:
    """`BatchAgent.run` at that gateway: by default one agent with the task "go"."""

    async def run(**keywords: Any) -> list[AgentResult]:
        keywords = {"task": "go", "inputs": [{}], "model": "m", "gateway": gateway.url} | keywords
        return await BatchAgent.run(**keywords)

    return run


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With a tracked, an untracked and an ignored file, and one that was changed."""
    place = tmp_path / "repository"
    place.mkdir()
    files = {"a.py": "a = 1\n", "sub/b.py": "b = 1\n", ".gitignore": "secret\n"}
    for name, text in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=place, check=True)
    (place / "a.py").write_text("a = 2\n")
    (place / "new.py").write_text("new = 1\n")
    (place / "secret").write_text("s")
    return place
