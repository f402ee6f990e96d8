"""Completes pyproject.toml by what only the publisher knows: the address of the repository, in TURNGATE_URL.

A package index shows the README without the repository around it, where relative links lead nowhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://)[^)\s]+)\)")


def long_description(readme: str, url: str) -> str:
    """Return the README with absolute links. Without a URL a relative link becomes its text, and an image goes."""

    def absolute(link: re.Match[str]) -> str:
        if not url:
            return "" if link["image"] else link["text"]
        target = link["target"]
        view = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({url}{target if target[0] == '#' else f'/{view}/main/{target}'})"

    return _LINK.sub(absolute, readme)


def project_urls(url: str) -> dict[str, str]:
    """Return the addresses that an index lists beside the package."""
    if not url:
        return {}
    named = {"Documentation": "tree/main/docs", "Changelog": "blob/main/CHANGELOG.md", "Issues": "issues"}
    return {"Source": url} | {name: f"{url}/{path}" for name, path in named.items()}


if __name__ == "__main__":
    from setuptools import setup

    address = os.environ.get("TURNGATE_URL", "").rstrip("/")
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(
        long_description=long_description(text, address),
        long_description_content_type="text/markdown",
        project_urls=project_urls(address),
    )
