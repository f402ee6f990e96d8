"""A working copy of a directory for one worker: a git repository of its own, so that its changes can be told."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_IDENTITY = ["-c", "user.name=batch-agent", "-c", "user.email=batch-agent@localhost"]
_PLAIN = ["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.autocrlf=false"]


class Workspace:
    """Blocking: for a thread. Raises OSError, subprocess.CalledProcessError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, source: Path) -> None:
        """Copy what git would: all files but the ignored ones, as they are now. Outside of a repository, all."""
        try:
            listed = _git(source, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        except subprocess.CalledProcessError:
            shutil.copytree(source, self.path, symlinks=True, dirs_exist_ok=True)
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in filter(None, os.fsdecode(listed).split("\0")):
                _copy(source / name, self.path / name)
        _git(self.path, "init", "--quiet")
        _git(self.path, "add", "--all", "--force")
        _git(self.path, "commit", "--quiet", "--allow-empty", "--message", "As it was given")

    def patch(self) -> str:
        """What has changed since, new files included; git applies it. Empty where it was not filled."""
        try:
            _git(self.path, "add", "--all")
            return _git(self.path, "diff", "--cached", "--binary", "HEAD").decode(errors="replace")
        except (OSError, subprocess.CalledProcessError):
            return ""

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _copy(file: Path, to: Path) -> None:
    if file.is_symlink() or file.is_file():  # not one that was deleted and is still tracked, nor a submodule
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, to, follow_symlinks=False)


def _git(directory: Path, *arguments: str) -> bytes:
    command = ["git", *_IDENTITY, *_PLAIN, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, check=True)  # noqa: S603 - our own words
    return done.stdout
