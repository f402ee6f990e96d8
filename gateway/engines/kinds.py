"""Engine kinds by name, and engine addresses as people write them: `--engine`, YAML, or lines of a hosts file."""

from __future__ import annotations

from importlib import import_module
from typing import cast
from urllib.parse import urlsplit

from gateway.engines.base import EngineAdapter, EngineAddress

KINDS = {
    "vllm": "gateway.engines.vllm:Vllm",
    "sglang": "gateway.engines.sglang:SGLang",
    "dynamo": "gateway.engines.dynamo:Dynamo",
    "openai": "gateway.engines.openai:OpenAI",
    "anthropic": "gateway.engines.providers.anthropic:Anthropic",
    "bedrock": "gateway.engines.providers.bedrock:Bedrock",
    "embedded": "gateway.engines.vllm:EmbeddedAdapter",
    "http": "gateway.engines.openai:Unnamed",
}
"""Import paths: an adapter is loaded when an engine of its kind is configured."""
EMBEDDED = "embedded"
UNNAMED = "http"
"""Its poller takes the adapter of the kind that the engine shows."""
DEFAULT_KIND = "vllm"
_TRANSPORTS = ("http", "https")


def adapter_of(kind: str) -> EngineAdapter:
    """The adapter of a short name, or of an import path `package.module:Class`. Raises ValueError."""
    module, _, name = KINDS.get(kind, kind).partition(":")
    if not name:
        raise ValueError(
            f"there is no engine kind {kind!r}: use one of {', '.join(KINDS)}, or package.module:Class"
        )
    try:
        return cast(EngineAdapter, getattr(import_module(module), name)())
    except (ImportError, AttributeError) as error:
        raise ValueError(f"engine kind {kind!r} cannot be imported: {error}") from None


def parse_address(
    url: str, name: str = "", api_key: str | None = None, metrics_urls: tuple[str, ...] = ()
) -> EngineAddress:
    """`kind://host:port[/path]`, `kind+https://host[/path]`, or `embedded`, which has no base URL yet;
    `openai://`, `anthropic://`, `bedrock://REGION` or `bedrock://REGION/MODEL,MODEL` for rented models;
    `http://host:port` of an engine that shows its kind itself.

    `kind://name:port?resolve=all` stands for an engine at each address of the name.
    A closing `/v1` is left out: the paths of the API have it. Raises ValueError with what to write instead.
    """
    if url == EMBEDDED:
        return EngineAddress(EMBEDDED, "", api_key, metrics_urls, name or EMBEDDED)
    scheme, separator, rest = url.partition("://")
    kind, _, transport = scheme.partition("+")
    if not separator or kind == "https":
        host = url.rpartition("://")[2] or "host:8000"
        named = "vllm+https" if separator else "vllm"
        raise ValueError(
            f"engine {url!r}: say which kind it is, such as {named}://{host} (kinds: {', '.join(KINDS)})"
        )
    adapter = adapter_of(kind)
    if not transport and (service := adapter.service_at(rest)):
        return EngineAddress(kind, service, api_key, metrics_urls, name or urlsplit(service).netloc)
    if transport not in ("", *_TRANSPORTS):
        raise ValueError(f"engine {url!r}: {transport!r} is no transport; write {kind}:// or {kind}+https://")
    parts = urlsplit(f"//{rest}")
    try:
        has_port = parts.port is not None or transport == "https" or kind == UNNAMED
    except ValueError as error:
        raise ValueError(f"engine {url!r}: {error}") from None
    if not parts.hostname or not has_port:
        raise ValueError(f"engine {url!r}: write host and port, such as {kind}://{parts.hostname or 'host'}:8000")
    base_url = f"{transport or 'http'}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    resolves_all = _resolves_all(url, parts.query, can_be_many=transport != "https" and not adapter.throttles)
    return EngineAddress(kind, base_url, api_key, metrics_urls, name or parts.netloc, resolves_all=resolves_all)


def _resolves_all(url: str, query: str, can_be_many: bool) -> bool:
    if not query.startswith("resolve="):
        return False
    if query != "resolve=all":
        raise ValueError(f"engine {url!r}: write ?resolve=all, or nothing behind the port")
    if not can_be_many:
        raise ValueError(f"engine {url!r}: ?resolve=all is for engines of your own without TLS")
    return True


def host_urls(text: str) -> list[str]:
    """Engine URLs of a hosts file: the first word of each line, vLLM where no kind is given; # starts a comment.

    Words after it, such as tags of other tools, are left unread.
    """
    words = (line.partition("#")[0].split() for line in text.splitlines())
    first = [word[0] for word in words if word]
    return [url if "://" in url or url in KINDS else f"{DEFAULT_KIND}://{url}" for url in first]
