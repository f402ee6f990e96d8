"""Runs one target under atheris: its process ends with libFuzzer's exit status.

python -m benchmarks.fuzz.coverage_guided relay -runs=1000
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

with atheris.instrument_imports(include=["gateway", "policies"]):
    from benchmarks.fuzz.targets import TARGETS


def main() -> None:
    program, target, *options = sys.argv
    atheris.Setup([program, *options], TARGETS[target]())
    atheris.Fuzz()


if __name__ == "__main__":
    main()
