"""The compose files are what compose accepts, by its own schema."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.real import parts

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "tests/real/inside/compose.py"


def complaints(*files: Path) -> str:
    parts.require("deploy", parts.DEPLOY_PYTHON)
    command = [parts.DEPLOY_PYTHON, CHECK, *files]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_compose_has_nothing_to_complain_about() -> None:
    files = sorted((ROOT / "deploy").glob("compose*.yaml"))
    assert files
    assert complaints(*files) == ""


def test_an_unknown_key_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("services: {gateway: {image: turngate, prots: ['80:80']}}\n")
    assert "prots" in complaints(file)
