from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer

from tests.tool_runtime.tools.calls import called
from tool_runtime.tools.http_get import Getter, HttpGetOptions, build
from tool_runtime.types import Result, Status

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Names(AbstractResolver):
    """Answers the lookups of a name one after the other; the last answer stays."""

    def __init__(self, *answers: str | Sequence[str]) -> None:
        self.answers = [[answer] if isinstance(answer, str) else list(answer) for answer in answers]
        self.num_lookups = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answer = self.answers[min(self.num_lookups, len(self.answers) - 1)]
        self.num_lookups += 1
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in answer
        ]

    async def close(self) -> None:
        pass


async def got(url: str, names: AbstractResolver | None = None, **settings: Any) -> Result:
    options = HttpGetOptions(**{"hosts": ("*",), **settings})
    tool = build({"hosts": list(options.hosts)})
    return await called(replace(tool, run=Getter(options, names).run), url=url)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    async with TestServer(app) as server:
        assert server.port is not None
        yield server.port


def local(port: int, **settings: Any) -> dict[str, Any]:
    """Settings that allow the test's own server under any name."""
    return {"hosts": (f"*:{port}",), "private_networks": ("127.0.0.1/32",), **settings}


async def page(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<title>T</title><p>Hello", content_type="text/html")


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/"),
        *(
            "http://[2002:7f00:1::]/",
            "http://[64:ff9b::127.0.0.1]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
        ),
        *("http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://017700000001/"),
        *("http://127.1/", "http://0/", "http://0x7f.1/", "http://127.0.0.1./", "http://①②⑦.0.0.1/"),
        *(
            "http://169.254.169.254/latest/meta-data",
            "http://100.100.100.200/",
            "http://10.0.0.1/",
            "http://[::]/",
        ),
        *("http://192.168.0.1/", "http://224.0.0.1/", "http://0.0.0.0/", "https://172.16.0.1/"),
        *("file:///etc/passwd", "ftp://example.com/", "gopher://example.com/", "//example.com/", "example.com"),
        *("http://ann:secret@example.com/", "http://ann@example.com/", "http://example.com:22/", "http://:80/"),
    ],
)
async def test_an_address_that_is_not_public_or_no_plain_http_is_refused(url: str) -> None:
    result = await got(url)
    assert result.status is Status.REFUSED, result.text
    assert "secret" not in result.text


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1", "::ffff:10.0.0.1", "169.254.169.254"])
async def test_a_name_of_a_local_address_is_refused(address: str) -> None:
    result = await got("http://innocent.example/", Names(address))
    assert (result.status, address in result.text) == (Status.REFUSED, True)


async def test_a_name_that_means_another_address_the_second_time_is_refused_then() -> None:
    async def again(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": str(request.url)})

    names = Names("127.0.0.1", "127.0.0.2")
    async with serving(again) as port:
        result = await got(f"http://rebinding.example:{port}/", names, **local(port))
    assert (result.status, names.num_lookups) == (Status.REFUSED, 2)


async def test_a_connection_goes_to_the_address_that_was_checked() -> None:
    names = Names("127.0.0.1", "10.0.0.1")
    async with serving(page) as port:
        result = await got(f"http://rebinding.example:{port}/", names, **local(port))
    assert (result.status, names.num_lookups) == (Status.OK, 1)


async def test_of_a_name_with_several_addresses_only_the_allowed_are_connected_to() -> None:
    async with serving(page) as port:
        mixed = await got(f"http://name.example:{port}/", Names(["10.0.0.1", "127.0.0.1", "::1"]), **local(port))
        local_only = await got(f"http://name.example:{port}/", Names(["10.0.0.1", "::1"]), **local(port))
    assert (mixed.status, local_only.status) == (Status.OK, Status.REFUSED)


@pytest.mark.parametrize(
    ("location", "status"),
    [
        ("http://10.0.0.1:{port}/", Status.REFUSED),
        ("http://169.254.169.254/", Status.REFUSED),
        ("http://[::1]:{port}/", Status.REFUSED),
        ("//2130706433:{port}/", Status.REFUSED),
        ("file:///etc/passwd", Status.REFUSED),
        ("http://ann:x@other.example:{port}/", Status.REFUSED),
        ("http://other.example:1/", Status.REFUSED),
        ("/further", Status.OK),
        ("http://other.example:{port}/further", Status.OK),
    ],
)
async def test_each_redirect_is_checked_like_the_first_address(location: str, status: Status) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/further":
            return await page(request)
        return web.Response(status=302, headers={"Location": location.format(port=request.url.port)})

    async with serving(handler) as port:
        result = await got(f"http://name.example:{port}/", Names("127.0.0.1"), **local(port))
    assert result.status is status, result.text


async def test_redirects_end() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"{request.path}x"})

    async with serving(handler) as port:
        result = await got(f"http://127.0.0.1:{port}/", **local(port))
    assert (result.status, "redirects" in result.text) == (Status.ERROR, True)


@pytest.mark.parametrize(
    ("hosts", "url", "is_allowed"),
    [
        (("docs.example",), "http://docs.example/", True),
        (("docs.example",), "http://DOCS.example./", True),
        (("docs.example",), "http://docs.example:8080/", False),
        (("docs.example:8080",), "http://docs.example:8080/", True),
        (("docs.example",), "http://evil.example/?docs.example", False),
        (("docs.example",), "http://docs.example.evil.example/", False),
        (("docs.example",), "http://evildocs.example/", False),
        (("*.example",), "http://a.b.example/", True),
        (("*.example",), "http://example/", False),
        (("*.example",), "http://evilexample/", False),
        (("docs.example",), "http://docs.example%2f.evil.example/", False),
        (("docs.example",), "http://evil.example\\@docs.example/", False),
        ((), "http://docs.example/", False),
    ],
)
async def test_only_hosts_on_the_list_are_asked(hosts: tuple[str, ...], url: str, is_allowed: bool) -> None:
    names = Names("203.0.113.1")  # refused in its turn, so nothing is connected to
    await got(url, names, hosts=hosts)
    assert names.num_lookups == is_allowed


async def test_a_page_is_given_as_its_text_and_other_text_as_it_is() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/latin":
            return web.Response(body="é".encode("latin-1"), content_type="text/plain", charset="latin-1")
        if request.path == "/json":
            return web.json_response({"a": [1]})
        return await page(request)

    async with serving(handler) as port:
        texts = [
            (await got(f"http://127.0.0.1:{port}{path}#part", **local(port))).text
            for path in ("/", "/latin", "/json")
        ]
    address = f"http://127.0.0.1:{port}"
    assert texts == [f"{address}/\n\nTitle: T\nHello", f"{address}/latin\n\né", f'{address}/json\n\n{{"a": [1]}}']


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "no-such", "x\0y"])
async def test_a_charset_that_is_none_is_read_as_utf8(charset: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\\u0041", headers={"Content-Type": f'text/plain; charset="{charset!r}"'})

    async with serving(handler) as port:
        result = await got(f"http://127.0.0.1:{port}/", **local(port))
    assert result.text.endswith("\n\n\\u0041")


async def test_what_is_no_text_is_an_error() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\x89PNG", content_type="image/png")

    async with serving(handler) as port:
        result = await got(f"http://127.0.0.1:{port}/", **local(port))
    assert (result.status, "image/png" in result.text) == (Status.ERROR, True)


async def test_an_error_page_is_an_error() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        raise web.HTTPNotFound(text="not here")

    async with serving(handler) as port:
        result = await got(f"http://127.0.0.1:{port}/", **local(port))
    assert (result.status, "404" in result.text, "not here" in result.text) == (Status.ERROR, True, True)


@pytest.mark.parametrize("is_bomb", [False, True])
async def test_no_more_is_read_than_the_limit(is_bomb: bool) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        """An endless answer, or 100 MB in 100 kB."""
        if is_bomb:
            body = gzip.compress(b"x" * 100_000_000)
            return web.Response(body=body, headers={"Content-Type": "text/plain", "Content-Encoding": "gzip"})
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)

    async with serving(handler) as port:
        result = await got(f"http://127.0.0.1:{port}/", **local(port, max_bytes=1000))
    assert result.status is Status.OK
    assert result.text.endswith("x" * 1000 + "\n[cut: only the first 1000 bytes were read]")


async def test_a_server_that_drips_is_left_after_the_time_limit() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.01)

    async with serving(handler) as port:
        result = await got(f"http://127.0.0.1:{port}/", **local(port, timeout_s=0.3))
    assert (result.status, "within 0.3 s" in result.text) == (Status.ERROR, True)


async def test_nothing_of_ours_is_sent_along_but_a_name() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.Response(status=302, headers={"Location": "/x"}) if request.path == "/" else web.Response()
        response.set_cookie("a", "b")
        response.text = " ".join(sorted(request.headers))
        return response

    async with serving(handler) as port:
        result = await got(f"http://127.0.0.1:{port}/", **local(port))
    assert result.text.split("\n\n")[1] == "Accept Accept-Encoding Connection Host User-Agent"


@pytest.mark.parametrize("settings", [{}, {"hosts": "a"}, {"hosts": [], "private_networks": ["x"]}, {"host": []}])
def test_settings_that_are_wrong_are_told(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="http_get"):
        build(settings)
