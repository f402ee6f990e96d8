"""Engine addresses as people write them: on the command line, in YAML, or one per line in a hosts file."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from gateway.engines import KINDS, named
from gateway.engines.base import EngineAddress

EMBEDDED = "embedded"
DEFAULT_KIND = "vllm"
_TRANSPORTS = ("http", "https")
_SERVICES = {"openai": "https://api.openai.com", "anthropic": "https://api.anthropic.com"}
"""Where kinds lead that need no host."""
_BEDROCK = re.compile(r"bedrock://([a-z]{2}(?:-[a-z]+)+-\d)(/[^/?#]*)?/?")


def parse_address(
    url: str, name: str = "", api_key: str | None = None, metrics_urls: tuple[str, ...] = ()
) -> EngineAddress:
    """`kind://host:port[/path]`, `kind+https://host[/path]`, or `embedded`, which has no base URL yet; `openai://`,
    `anthropic://`, `bedrock://REGION` or `bedrock://REGION/MODEL,MODEL` for what is rented.

    A closing `/v1` is left out: the paths of the API have it. Raises ValueError with what to write instead.
    """
    if url == EMBEDDED:
        return EngineAddress(EMBEDDED, "", api_key, metrics_urls, name or EMBEDDED)
    scheme, separator, _ = url.partition("://")
    kind, _, transport = scheme.partition("+")
    if not separator or kind in _TRANSPORTS:
        host = url.rpartition("://")[2] or "host:8000"
        raise ValueError(
            f"engine {url!r}: say which kind it is, such as vllm://{host} (kinds: {', '.join(KINDS)})"
        )
    named(kind)
    if (rented := _rented(url, kind)) is not None:
        return EngineAddress(kind, rented, api_key, metrics_urls, name or urlsplit(rented).netloc)
    if transport not in ("", *_TRANSPORTS):
        raise ValueError(f"engine {url!r}: {transport!r} is no transport; write {kind}:// or {kind}+https://")
    parts = urlsplit(f"//{url.partition('://')[2]}")
    try:
        has_port = parts.port is not None or transport == "https"
    except ValueError as error:
        raise ValueError(f"engine {url!r}: {error}") from None
    if not parts.hostname or not has_port:
        raise ValueError(f"engine {url!r}: write host and port, such as {kind}://{parts.hostname or 'host'}:8000")
    base_url = f"{transport or 'http'}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    return EngineAddress(kind, base_url, api_key, metrics_urls, name or parts.netloc)


def _rented(url: str, kind: str) -> str | None:
    """Base URL of a service; None for an engine's address."""
    if url == f"{kind}://":
        return _SERVICES.get(kind)
    found = _BEDROCK.fullmatch(url)
    return found and f"https://bedrock-runtime.{found[1]}.amazonaws.com{found[2] or ''}"


def host_urls(text: str) -> list[str]:
    """Engine URLs of a hosts file: the first word of each line, vLLM where no kind is given; # starts a comment.

    Words after it, such as tags of other tools, are left unread.
    """
    words = (line.partition("#")[0].split() for line in text.splitlines())
    first = [word[0] for word in words if word]
    return [url if "://" in url or url in KINDS else f"{DEFAULT_KIND}://{url}" for url in first]
