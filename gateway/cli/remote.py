"""A running gateway, as commands read its pages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from gateway.access.keys import plain_keys
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core import fields
from gateway.core.errors import ConfigError
from gateway.core.fields import Json
from gateway.core.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused
from gateway.transport.aiohttp_upstream import AiohttpUpstream

_MAX_PAGE_BYTES = 64 * 2**20


class NoPage(Exception):
    """The gateway did not give the page; the text says why and what to do."""


def add_key_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        metavar="REF",
        help="show the gateway this key, given as env:NAME or file:PATH (default: the keys of the configuration)",
    )


def add_gateway_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gateway",
        metavar="URL",
        default="http://127.0.0.1:8080",
        help="ask the gateway at this address (default: %(default)s)",
    )
    add_key_flag(parser)


def given_key(reference: str) -> str:
    """Return the key that `--key` refers to. Raises ConfigError."""
    try:
        return loading.secret(reference)
    except ConfigError as error:
        raise ConfigError(f"--key: {error}") from None


def base_of(url: str) -> str:
    """Return the address of a gateway that was written without a scheme, or as the base URL of clients."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


async def page(upstream: Upstream, url: str, path: str, key: str, timeout_s: float) -> Json:
    """Read one page, which is a JSON object. An empty `key` is not sent. Raises NoPage."""
    base = base_of(url)
    headers = [("Authorization", f"Bearer {key}")] if key else []
    times = Timeouts(timeout_s, timeout_s, timeout_s)
    try:
        reply = await upstream.call("GET", base + path, headers, None, times)
        content = orjson.loads(await reply.read(_MAX_PAGE_BYTES))
    except UpstreamRefused:
        raise NoPage(f"nothing answers at {base}: is the gateway running? --gateway URL names another") from None
    except UpstreamCut as error:
        raise NoPage(f"{base} does not answer: {error}") from None
    except orjson.JSONDecodeError:
        content = None
    if reply.status in (401, 403) and key:
        raise NoPage(f"{base} does not accept this key: name another one, --key env:NAME")
    if reply.status in (401, 403):
        raise NoPage(f"{base} asks for a key: --key env:NAME, or name it in the configuration (--config)")
    content = shown(content)
    if reply.status == 200 and isinstance(content, dict):
        return content
    failure = fields.obj(content, "error") if isinstance(content, dict) else {}
    why = fields.text(failure, "message") or "it is no Turngate, or an old one"
    raise NoPage(f"{base} answered {reply.status}: {why}")


def shown(value: Any) -> Any:
    """Return a JSON value with the invisible characters of its texts escaped: clients and engines chose some."""
    if isinstance(value, str):
        return fields.visible(value)
    if isinstance(value, list):
        return [shown(item) for item in value]
    return {shown(key): shown(item) for key, item in value.items()} if isinstance(value, dict) else value


async def report(
    settings: Settings, url: str, key: str | None, path: str, rows: str, as_text: Callable[[Sequence[Json]], str]
) -> int:
    """Print the rows of a page as the tenants of all configured keys see them; 1 when the gateway gives none.
    `key` refers to the one key to show instead. Raises ConfigError."""
    keys = plain_keys(settings).values() if key is None else [given_key(key)]
    upstream, timeout_s = AiohttpUpstream(), settings.probing.timeout_s
    try:
        pages = [await page(upstream, url, path, shown, timeout_s) for shown in keys]
    except NoPage as error:
        print(f"turngate: {error}", file=sys.stderr)
        return 1
    finally:
        await upstream.close()
    print(as_text([row for content in pages for row in fields.items(content, rows)]))
    return 0
