"""`python -m tests.deploy.licences`: writes docs/licences.md from what installed packages say of themselves."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "licences.md"
HEAD = """\
# Licences

Turngate is under Apache-2.0. This is what the container image holds beside it, every extra included; the versions
are pinned in [deploy/locks/image.lock](../deploy/locks/image.lock). MPL-2.0 covers the files of its packages, and
they are used as they are. Written by `python -m tests.deploy.licences` from the packages' own metadata.

| package | licence |
|---|---|
"""
_PIN = re.compile(r"^(\S+==\S+(?: ; .+?)?) \\\\?$", re.MULTILINE)
_LINUX = {"sys_platform": "linux", "platform_system": "Linux"}
_SPDX = {
    "Apache 2.0": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "Dual License": "Apache-2.0 OR BSD-3-Clause",
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
}
"""What packages say in their own words. Of `Dual License` (python-dateutil) the choice is ours."""


def pins(lock: str) -> list[Requirement]:
    """Of one file under deploy/locks, as far as they concern Linux."""
    text = (ROOT / "deploy" / "locks" / lock).read_text()
    found = [Requirement(line) for line in _PIN.findall(text)]
    return [pin for pin in found if pin.marker is None or pin.marker.evaluate(_LINUX)]


def licence(name: str) -> str | None:
    """As an SPDX expression; None when the package is not installed here."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    said = next((about[key] for key in ("License-Expression", "License") if key in about), "")
    if not said or "\n" in said:
        found = [
            row.split(" :: ")[-1] for row in about.get_all("Classifier") or () if row.startswith("License ::")
        ]
        said = found[0] if len(found) == 1 else said
    return _SPDX.get(said, said)


def main() -> None:
    kept = (
        dict(re.findall(r"^\| (\S+) \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)) if DOCUMENT.exists() else {}
    )
    names = sorted({canonicalize_name(pin.name) for pin in pins("image.lock")})
    rows = [f"| {name} | {licence(name) or kept.get(name, '?')} |" for name in names]
    DOCUMENT.write_text(HEAD + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
