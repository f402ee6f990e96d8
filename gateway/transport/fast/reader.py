"""Bytes of one client to requests: what llhttp lets pass and we do not is refused here."""

from __future__ import annotations

from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from gateway.core.transport import by_name
from gateway.transport.edge import MAX_HEAD_BYTES, fault_of
from gateway.transport.fast.head import RawHeaders, decoded, size_bytes
from gateway.transport.fast.request import FastRequest, Source

_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class Taker(Source, Protocol):
    """The connection that requests come from."""

    def has_begun(self, request: FastRequest) -> None:
        """The head of a request has come."""
        ...

    def has_come(self, request: FastRequest) -> None:
        """All of a request has come."""
        ...

    def is_refused(self, fault: str, request: FastRequest | None) -> None:
        """Nothing more can be read. `request`: the one whose body broke off; None: between two."""
        ...


class _Refused(Exception):
    pass


class RequestReader:
    """`feed` it what comes; it tells its taker."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._target = b""
        self._headers: RawHeaders = []
        self._block_bytes = 0
        self._bodiless_bytes = 0
        """That have come without a byte of body among them."""
        self._incoming: FastRequest | None = None
        """Whose body is coming."""

    @property
    def is_open(self) -> bool:
        return self._parser is not None

    @property
    def is_in_head(self) -> bool:
        return self._bodiless_bytes > 0 and self._incoming is None

    def stop(self) -> None:
        """Whatever else comes is dropped."""
        self._parser = None

    def feed(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            return
        self._block_bytes = len(data)
        self._bodiless_bytes += len(data)
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as stopped:
            self._after_upgrade(data[stopped.args[0] :])
        except HttpParserError as error:
            self.refuse(str(error.__context__ or error))
        else:
            if self._bodiless_bytes > MAX_HEAD_BYTES:
                self.refuse(f"its headers or trailers are longer than {MAX_HEAD_BYTES} bytes")

    def refuse(self, fault: str) -> None:
        """What follows cannot be told apart any more. Nothing is told once the reader has been stopped."""
        if self._parser is None:
            return
        self.stop()
        self._taker.is_refused(fault, self._incoming)

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers come here too, and are forgotten with their request."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._incoming is not None:
            return  # the head that a parser is primed with after an upgrade
        parser, raw = self._parser, self._headers
        assert parser is not None
        is_long = max(self._block_bytes, self._bodiless_bytes) > MAX_HEAD_BYTES
        if is_long and size_bytes(self._target, raw) > MAX_HEAD_BYTES:
            raise _Refused(f"its headers are longer than {MAX_HEAD_BYTES} bytes")
        target, version = self._target.decode("ascii"), parser.get_http_version()
        header_list = decoded(raw)
        headers = by_name(header_list)
        if (fault := fault_of(version, target, header_list, headers)) is not None:
            raise _Refused(fault)
        self._incoming = FastRequest(
            self._taker,
            parser.get_method().decode("ascii"),
            target,
            version,
            header_list,
            headers,
            version == "1.1" and parser.should_keep_alive(),
        )
        self._taker.has_begun(self._incoming)

    def on_body(self, data: bytes) -> None:
        self._bodiless_bytes = 0
        assert self._incoming is not None
        self._incoming.feed(data)

    def on_message_complete(self) -> None:
        if self._parser is not None and self._parser.should_upgrade():
            return  # that was its head
        request, self._incoming = self._incoming, None
        assert request is not None
        self._target, self._headers, self._bodiless_bytes = b"", [], 0
        request.finish()
        self._taker.has_come(request)

    def _after_upgrade(self, rest: bytes) -> None:
        """We upgrade to nothing, so the request is an ordinary one. Its parser has stopped behind the head; a new
        one, primed with what frames the body, goes on."""
        framing = [b"%b: %b\r\n" % item for item in self._headers if item[0].lower() in _FRAMING]
        self._parser = HttpRequestParser(self)
        self._parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"]))
        if rest:
            self.feed(rest)
