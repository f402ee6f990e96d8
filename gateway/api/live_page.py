"""`/ui`: one page over the live snapshot. It loads nothing from other addresses, and holds no data without a key.

Markup, style and script are sent as one answer, whose policy allows nothing else to run.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from gateway.core.transport import HeaderList

_PARTS = ("page.html", "page.css", "page.js")


class LivePage:
    """The page, read once. Its policy names its own style and script by their hashes."""

    def __init__(self) -> None:
        folder = files("gateway.api") / "page"
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


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
