"""Real, unmodified agents on their own command lines, each run in a fresh git repository and home."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.parts import (
    CODEX_COMMAND,
    OPENCODE_COMMAND,
    RIPGREP_BIN_DIR,
    require,
)
from tests.real.process import kill_group

DEFAULT_TIMEOUT_S = 300.0
PASSED_ON = ("PATH", "LANG", "TERM")
GIT_IDENTITY = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
GIT_DATES = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}
"""Equal files make equal commits, whose names some agents put into their prompts."""


@dataclass(frozen=True)
class AgentRun:
    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    has_timed_out: bool
    workspace: Path
    """Where it ran: its prompts name this directory, which is gone by now."""


def make_workspace(workspace: Path, files: Mapping[str, str]) -> None:
    """A small git repository; agents look at git to find the project's root."""
    workspace.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "start"]):
        command = ["git", *GIT_IDENTITY, *arguments]
        subprocess.run(command, cwd=workspace, env=os.environ | GIT_DATES, check=True)


DEFAULT_FILES = {
    "main.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "README.md": "# Example\n\nAdds numbers.\n",
}


def opencode_config(base_url: str, model: str, **model_settings: Any) -> dict[str, str]:
    """The one variable that points OpenCode at a gateway: `base_url` without /v1."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{base_url}/v1", "apiKey": "test-key"},
        "models": {model: model_settings},
    }
    config = {"model": f"lab/{model}", "provider": {"lab": provider}, "permission": "allow"}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


def openai_environment(base_url: str) -> dict[str, str]:
    """The two variables of every OpenAI SDK; OpenCode's built-in provider speaks Responses with them."""
    return {"OPENAI_API_KEY": "test-key", "OPENAI_BASE_URL": f"{base_url}/v1"}


async def run_opencode(
    task: str,
    env: Mapping[str, str],
    *,
    arguments: Sequence[str] = (),
    files: Mapping[str, str] = DEFAULT_FILES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    place: Path | None = None,
) -> AgentRun:
    """`opencode run`; `env` is `opencode_config(...)` or `openai_environment(...)`."""
    require("opencode", OPENCODE_COMMAND, RIPGREP_BIN_DIR / "rg")
    command = [str(OPENCODE_COMMAND), "run", *arguments, task]
    offline = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return await run_command(command, {**offline, **env}, files, timeout_s, place=place)


async def run_codex(
    task: str,
    base_url: str,
    *,
    model: str = "lab-model",
    has_own_provider: bool = True,
    arguments: Sequence[str] = (),
    files: Mapping[str, str] = DEFAULT_FILES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    place: Path | None = None,
) -> AgentRun:
    """`codex exec` with a provider of its own, or its built-in one, which tries WebSocket first, at `base_url`.

    `base_url` has no /v1.
    """
    require("codex", CODEX_COMMAND)
    own_provider = {
        "model_provider": "lab",
        "model_providers.lab.name": "Lab",
        "model_providers.lab.base_url": f"{base_url}/v1",
        "model_providers.lab.env_key": "CODEX_API_KEY",
        "model_providers.lab.wire_api": "responses",
    }
    provider = own_provider if has_own_provider else {"openai_base_url": f"{base_url}/v1"}
    settings = [part for name, value in provider.items() for part in ("-c", f"{name}={value}")]
    command = [str(CODEX_COMMAND), "exec", "--skip-git-repo-check"]
    command += ["--dangerously-bypass-approvals-and-sandbox", "-m", model]
    command += [*settings, *arguments, task]
    return await run_command(command, {"CODEX_API_KEY": "test-key"}, files, timeout_s, place=place)


async def run_command(
    command: Sequence[str | Path],
    env: Mapping[str, str],
    files: Mapping[str, str] = DEFAULT_FILES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    *,
    home_files: Mapping[str, str] | None = None,
    place: Path | None = None,
) -> AgentRun:
    """Runs it in a fresh repository with a fresh home.

    Both are below `place`, which is emptied before and gone afterwards; by default that is a new directory.
    """
    with _fresh(place) as root:
        home, workspace = root / "home", root / "workspace"
        for name, text in (home_files or {}).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        home.mkdir(exist_ok=True)
        make_workspace(workspace, files)
        inherited = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        inherited["PATH"] = f"{RIPGREP_BIN_DIR}:{inherited['PATH']}"
        process = subprocess.Popen(
            command,
            cwd=workspace,
            env={**inherited, "HOME": str(home), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            return await asyncio.to_thread(_wait, process, workspace, timeout_s)
        finally:
            # Also the agent's own children, which outlive it, and the agent of a cancelled test.
            kill_group(process, signal.SIGKILL)


@contextmanager
def _fresh(place: Path | None) -> Iterator[Path]:
    if place is None:
        with tempfile.TemporaryDirectory(prefix="turngate-agent-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], workspace: Path, timeout_s: float) -> AgentRun:
    started = time.monotonic()
    has_timed_out = False
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        has_timed_out = True
        kill_group(process, signal.SIGKILL)
        stdout, stderr = process.communicate()
    return AgentRun(
        process.returncode,
        stdout.decode(errors="replace"),
        stderr.decode(errors="replace"),
        time.monotonic() - started,
        has_timed_out,
        workspace,
    )
