"""Laws of the page: it loads nothing, runs nothing but its own script, and its script makes no markup of text."""

from __future__ import annotations

import base64
import hashlib
import re

from gateway.api.sessions import SessionPhase
from gateway.api.views import LivePage
from gateway.api.why import ALL_PARTS

TEXT = LivePage().body.decode()
POLICY = dict(LivePage().headers)["Content-Security-Policy"]


def inline(tag: str) -> str:
    (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", TEXT, re.DOTALL)
    return str(text)


def test_the_policy_allows_its_own_script_and_style_alone() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(inline(tag).encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert (
        rules["default-src"] == rules["frame-ancestors"] == rules["form-action"] == rules["base-uri"] == "'none'"
    )
    assert rules["connect-src"] == "'self'"


def test_the_page_names_no_other_address() -> None:
    assert set(re.findall(r"https?://[^\"'\s]+", TEXT)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"\b(?:src|href)=", TEXT) == []


def test_no_text_becomes_markup_or_code() -> None:
    forbidden = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "localStorage",
    )
    assert [word for word in forbidden if word in TEXT] == []
    assert re.findall(r"<\w+[^>]*\s(?:on\w+|style)=", TEXT) == []


def test_every_part_of_a_session_s_time_has_a_name_and_a_colour() -> None:
    for part in ALL_PARTS:
        (found,) = re.findall(rf'\b{part}: \["(\w+)", "[^"]+"\]', inline("script"))
        assert f"rect.{found}" in inline("style")


def test_every_phase_has_a_colour() -> None:
    for phase in SessionPhase:
        assert f".phase.{phase}" in TEXT
        assert f'"{phase}"' in inline("script")
