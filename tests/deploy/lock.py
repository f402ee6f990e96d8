"""`make lock`: pins every dependency, with the hashes of its files, for the image, its build and development.

Pins that still fit stay; `--upgrade` takes the newest.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
NOT_IN_THE_IMAGE = frozenset(("demo", "dev", "lock", "top"))
IMAGE_EXTRAS = sorted(EXTRAS.keys() - NOT_IN_THE_IMAGE)
LOCKS = {
    "image.lock": [
        *PROJECT["project"]["dependencies"],
        *(line for extra in IMAGE_EXTRAS for line in EXTRAS[extra]),
    ],
    "dev.lock": [*PROJECT["project"]["dependencies"], *(line for lines in EXTRAS.values() for line in lines)],
    "build.lock": PROJECT["build-system"]["requires"],
}
"""What each file under deploy/locks has to satisfy."""
FLAGS = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet")


def main() -> None:
    for name, requirements in LOCKS.items():
        place = f"deploy/locks/{name}"
        command = ("uv", "pip", "compile", "-", *FLAGS, *sys.argv[1:], "--output-file", place)
        subprocess.run(command, input="\n".join(requirements), text=True, check=True, cwd=ROOT)
        print(place)


if __name__ == "__main__":
    main()
