"""The page as it is sent: markup, style and script in one answer that may run nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from gateway.core.transport import HeaderList

PATH = "/ui"


class LivePage:
    """Read once; its policy names its own style and script by their hashes."""

    def __init__(self) -> None:
        folder = files("gateway.api.ui")
        markup, style, script = (folder.joinpath(name).read_text("utf-8") for name in _PARTS)
        self.body = markup.replace("/*style*/", style).replace("/*script*/", script).encode()
        policy = (
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.headers: HeaderList = (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-cache"),
        )


_PARTS = ("page.html", "page.css", "page.js")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
