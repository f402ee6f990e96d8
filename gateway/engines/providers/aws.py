"""What only AWS has: signed requests, and streams of binary events. Needs the extra `bedrock`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import orjson

from gateway.core.fields import Json
from gateway.core.transport import HeaderList

_REGION = re.compile(r"^https://bedrock(?:-runtime)?(?:-fips)?\.([a-z0-9-]+)\.")
_DEFAULT_REGION = "us-east-1"
CREDENTIALS_S = 20.0
"""For finding or renewing them, which may ask a server."""


class NoCredentials(Exception):
    """There is nothing to sign with."""


class Signer:
    """Signs with the credentials that AWS's own tools would find: variables, profiles, roles."""

    def __init__(self) -> None:
        """Raises ImportError."""
        import botocore.session

        self._session = botocore.session.get_session()

    async def signed(self, method: str, url: str, headers: HeaderList, body: bytes | None) -> HeaderList:
        """`headers` and the signature. Raises NoCredentials."""
        try:
            async with asyncio.timeout(CREDENTIALS_S):
                return await asyncio.to_thread(self._signed, method, url, headers, body)
        except TimeoutError:
            raise NoCredentials("AWS credentials were not found in time") from None

    def _signed(self, method: str, url: str, headers: HeaderList, body: bytes | None) -> HeaderList:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        try:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise NoCredentials("there are no AWS credentials: set `api_key`, or what AWS's own tools read")
            found = _REGION.match(url)
            region = found[1] if found else self._session.get_config_variable("region") or _DEFAULT_REGION
            request: Any = AWSRequest(method, url, dict(headers), body)
            SigV4Auth(credentials.get_frozen_credentials(), "bedrock", region).add_auth(request)
        except BotoCoreError as error:
            raise NoCredentials(str(error)) from None
        return list(request.headers.items())


class EventStream:
    """Cuts `application/vnd.amazon.eventstream` into events."""

    def __init__(self) -> None:
        from botocore.eventstream import EventStreamBuffer

        self._buffer: Any = EventStreamBuffer()

    def feed(self, chunk: bytes) -> Iterator[tuple[str, Json]]:
        """Name and content of each event that is complete. Raises ValueError for what is no such stream."""
        from botocore.eventstream import ParserError

        try:
            self._buffer.add_data(chunk)
            for message in self._buffer:
                name = message.headers.get(":event-type") or message.headers.get(":exception-type") or "Exception"
                yield name, orjson.loads(message.payload or b"{}")
        except ParserError as error:
            raise ValueError(str(error)) from None
