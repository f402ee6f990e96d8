"""Another distribution that has overwritten packages of this one, or was overwritten by them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

RIVAL = "batch-agent"
"""It installs a package `batch_agent`, as this distribution does, and pip overwrites files of either silently."""


def overwritten() -> str | None:
    """Return the warning that `batch-agent` is installed beside. None: it is not."""
    try:
        found = version(RIVAL)
    except PackageNotFoundError:
        return None
    return (
        f"{RIVAL} {found} is installed beside turngate, and both own the package batch_agent: its files are mixed."
        f" Run: pip uninstall -y {RIVAL} && pip install --force-reinstall --no-deps turngate"
    )
