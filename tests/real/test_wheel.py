"""Laws of the wheel: it installs into an empty environment of each Python that it names, and serves there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S
from tests.real import parts

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
INSTALL_S = 300.0
REMEDY = "pip uninstall -y batch-agent && pip install --force-reinstall --no-deps turngate"
INHERITED = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TURNGATE_"))}


def run(*command: str | Path, cwd: Path, may_fail: bool = False) -> str:
    """Return what it wrote to standard error."""
    done = subprocess.run(
        command, cwd=cwd, env=INHERITED, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert may_fail or done.returncode == 0, done.stderr[-2000:]
    return done.stderr


def interpreter(version: str) -> str:
    """A Python of that version: on the path, or one of pyenv's or uv's."""
    homes = (Path.home() / ".pyenv/versions", Path.home() / ".local/share/uv/python")
    kept = [str(found) for home in homes for found in sorted(home.glob(f"*{version}*/bin/python{version}"))]
    for found in (*kept, shutil.which(f"python{version}")):
        if found and not subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode:
            return found
    pytest.skip(f"Python {version} is not here")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the tree stays as it is."""
    source, made = tmp_path_factory.mktemp("source") / "turngate", tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=ignored)
    build = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(made), str(source)]
    run(interpreter("3.11"), "-m", *build, cwd=made)
    (found,) = made.glob("*.whl")
    return found


def install(python: Path, *wanted: str) -> None:
    run(python, "-m", "pip", "install", "--quiet", *wanted, cwd=python.parent)


@contextmanager
def serving(turngate: Path, folder: Path) -> Iterator[str]:
    """The base URL of a gateway with an embedded engine."""
    command = [str(turngate), "serve", "--engine", "embedded", "--port", "0"]
    with subprocess.Popen(
        command, cwd=folder, env=INHERITED, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = []
        try:
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"OPENAI_BASE_URL=(\S+)", line):
                    yield found[1]
                    break
            else:
                pytest.fail("".join(said))
        finally:
            process.terminate()


@pytest.mark.parametrize("version", PYTHONS)
def test_it_installs_and_serves_and_warns_of_batch_agent_beside_it(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    run(interpreter(version), "-m", "venv", "env", cwd=tmp_path)
    programs = tmp_path / "env/bin"
    install(programs / "python", f"{wheel}[fast]")
    body = {"model": "any", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    with serving(programs / "turngate", tmp_path) as base_url:
        request = urllib.request.Request(
            f"{base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 5
    assert run(programs / "python", "-c", "import batch_agent", cwd=tmp_path) == ""

    install(programs / "python", "--no-deps", f"batch-agent=={parts.ORIGINAL_VERSION}")
    assert REMEDY in run(programs / "turngate", "check", "--engine", "embedded", cwd=tmp_path)
    install(programs / "python", "--no-deps", "--force-reinstall", str(wheel))
    # Its folder `tools` remains, and hides our module of that name.
    assert REMEDY in run(programs / "python", "-c", "import batch_agent", cwd=tmp_path, may_fail=True)
    run(programs / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "batch-agent", cwd=tmp_path)
    install(programs / "python", "--no-deps", "--force-reinstall", str(wheel))
    assert run(programs / "python", "-c", "import batch_agent", cwd=tmp_path) == ""
