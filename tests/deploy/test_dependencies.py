"""Dependencies: each is pinned by hashes, satisfies what the project asks for, and may be used."""

from __future__ import annotations

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.licences import DOCUMENT, ROOT, licence, pins
from tests.deploy.lock import IMAGE_EXTRAS, LOCKS

MAY_BE_USED = frozenset(
    (
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "MIT",
        "MIT-0",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
        "Zlib",
    )
)
LISTED = dict(re.findall(r"^\| (\S+) \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE))


def pinned(lock: str) -> dict[str, str]:
    """Name -> version."""
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins(lock)}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_satisfies_what_the_project_asks_for(lock: str) -> None:
    versions = pinned(lock)
    for line in LOCKS[lock]:
        asked = Requirement(line)
        if asked.marker is None or asked.marker.evaluate():
            name = canonicalize_name(asked.name)
            assert name in versions, f"make lock: {name} is missing"
            assert asked.specifier.contains(versions[name], prereleases=True), f"make lock: {line}"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_hashes_and_no_address(lock: str) -> None:
    text = (ROOT / "deploy" / "locks" / lock).read_text()
    assert "://" not in text
    assert "--index-url" not in text
    for block in re.split(r"\n(?=\S)", text.strip()):
        assert "==" in block.splitlines()[0]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]


def test_what_pinned_packages_need_is_pinned_too() -> None:
    versions = pinned("image.lock")
    for name, version in versions.items():
        try:
            about = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if about.version != version:
            continue
        for line in about.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in versions, f"{name} needs {needed.name}"


def test_the_image_installs_from_the_locks_alone() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "redis" not in IMAGE_EXTRAS or "redis" in pinned("image.lock")
    for line in re.findall(r"pip (?:install|wheel)[^&\n]*", text):
        assert "--require-hashes -r locks/" in line or "--no-deps" in line


def test_the_licence_of_every_package_in_the_image_is_known_and_may_be_used() -> None:
    assert set(LISTED) - {"package", "---"} == set(pinned("image.lock")), "make lock"
    for name in pinned("image.lock"):
        words = set(re.findall(r"[A-Za-z0-9.-]+", LISTED[name])) - {"AND", "OR"}
        assert words, name
        assert words <= MAY_BE_USED, f"{name}: {LISTED[name]}"


def test_the_list_of_licences_says_what_the_packages_say() -> None:
    for name in pinned("image.lock"):
        assert licence(name) in (None, LISTED[name]), "make lock"
