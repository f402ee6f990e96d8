"""A server of Bedrock's Converse API that takes what the real one takes, by AWS's own model of it; signed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import botocore.session
import orjson
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.validate import ParamValidator

from tests.path.fake_service import FakeService, Refusal

KEY_ID, SECRET, REGION = "AKIDTEST", "very-secret", "us-east-1"
BEARER = "bedrock-api-key-test"
USAGE = {"inputTokens": 5, "cacheReadInputTokens": 100, "cacheWriteInputTokens": 20, "outputTokens": 7}
USAGE |= {"totalTokens": sum(USAGE.values())}
CACHING = "anthropic."
"""Models that take cache points begin with it."""


class FakeBedrock(FakeService):
    """Script: lists of content blocks, or Refusals."""

    def __init__(self) -> None:
        super().__init__()
        self._model = botocore.session.get_session().get_service_model("bedrock-runtime")
        router = self.application.router
        router.add_get("/foundation-models", self._models)
        router.add_get("/inference-profiles", self._profiles)
        router.add_post("/model/{model}/{verb:converse|converse-stream}", self._converse)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.num_listed += 1
        return _unauthorised(request, b"") or web.json_response({"modelSummaries": [{"modelId": "amazon.x-v1:0"}]})

    async def _profiles(self, request: web.Request) -> web.StreamResponse:
        row = {"inferenceProfileId": "us.anthropic.y-v1:0"}
        return _unauthorised(request, b"") or web.json_response({"inferenceProfileSummaries": [row]})

    async def _converse(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        if problem := _unauthorised(request, raw):
            return problem
        body, model_id = orjson.loads(raw), unquote(request.match_info["model"])
        self.bodies.append(body | {"modelId": model_id})
        shape = self._model.operation_model("Converse").input_shape
        report = ParamValidator().validate(body | {"modelId": model_id}, shape)
        if report.has_errors():
            return _error(400, report.generate_report())
        if b"cachePoint" in raw and CACHING not in model_id:
            return _error(403, "You invoked an unsupported model or your request did not allow prompt caching.")
        content = self.script.pop(0)
        if isinstance(content, Refusal):
            return web.json_response(content.body, status=content.status, headers=content.headers)
        reason = "tool_use" if any("toolUse" in block for block in content) else "end_turn"
        if request.match_info["verb"] == "converse":
            message = {"role": "assistant", "content": content}
            told = {"output": {"message": message}, "stopReason": reason, "usage": USAGE}
            return web.json_response(told | {"metrics": {"latencyMs": 1}})
        response = web.StreamResponse(headers={"Content-Type": "application/vnd.amazon.eventstream"})
        await response.prepare(request)
        sent = b"".join(encoded(name, event) for name, event in events(content, reason))
        for start in range(0, len(sent), 50):  # in pieces that end anywhere
            await response.write(sent[start : start + 50])
        return response


def events(content: list[dict[str, Any]], reason: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "messageStart", {"role": "assistant"}
    for index, block in enumerate(content):
        at = {"contentBlockIndex": index}
        if call := block.get("toolUse"):
            start = {"toolUse": {key: call[key] for key in ("toolUseId", "name")}}
            yield "contentBlockStart", at | {"start": start}
            text = orjson.dumps(call["input"]).decode() if call["input"] else ""
            for piece in (text[:4], text[4:]):
                yield "contentBlockDelta", at | {"delta": {"toolUse": {"input": piece}}}
        elif thought := block.get("reasoningContent"):
            yield (
                "contentBlockDelta",
                at | {"delta": {"reasoningContent": {"text": thought["reasoningText"]["text"]}}},
            )
        else:
            for piece in (block["text"][:3], block["text"][3:]):
                yield "contentBlockDelta", at | {"delta": {"text": piece}}
        yield "contentBlockStop", at
    yield "messageStop", {"stopReason": reason}
    yield "metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}


def encoded(name: str, event: dict[str, Any]) -> bytes:
    """One message of AWS's event stream: lengths, checksum, headers, payload, checksum."""
    kind, label = ("exception", ":exception-type") if name.endswith("Exception") else ("event", ":event-type")
    headers = b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for key, value in ((":message-type", kind), (label, name), (":content-type", "application/json"))
    )
    payload = orjson.dumps(event)
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


def _unauthorised(request: web.Request, raw: bytes) -> web.Response | None:
    given = request.headers.get("Authorization", "")
    if given == f"Bearer {BEARER}" or given == _signature(request, raw):
        return None
    return _error(403, "The request signature we calculated does not match the signature you provided.")


def _signature(request: web.Request, raw: bytes) -> str:
    names = ("host", "content-type", "x-amz-date")
    headers = {name: request.headers.get(name, "") for name in names}
    url = f"http://{request.host}{request.raw_path}"
    again = AWSRequest(request.method, url, headers, raw or None)
    again.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials(KEY_ID, SECRET), "bedrock", REGION)
    text = auth.string_to_sign(again, auth.canonical_request(again))
    scope, signed = auth.scope(again), auth.signed_headers(auth.headers_to_sign(again))
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={signed}, Signature={auth.signature(text, again)}"


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)
