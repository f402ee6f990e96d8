"""What the shim can do to a request on its way: script the engine, hide the client, rename the model."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from tests.real.scripts import Answer, Body, Script, hermes, num_turns
from tests.real.shim import Headers, Request, Rewrite

GENERATION_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
SCRIPT_HEADER = "x-scripted-regex"
IDENTITY_HEADER_PREFIXES = ("x-session-", "x-parent-session-", "x-codex-", "x-opencode-", "x-claude-code-")
IDENTITY_HEADERS = frozenset(
    {"session-id", "session_id", "thread-id", "x-client-request-id", "x-openai-subagent"}
    | {"originator", "user-agent"}
)
IDENTITY_BODY_FIELDS = ("prompt_cache_key", "client_metadata", "metadata")


def forced(answer: Answer, kind: str = "vllm") -> Body:
    """Body fields that make an engine with random weights emit this answer, through its real grammar code."""
    text = hermes(answer)
    grammar = {"structured_outputs": {"choice": [text]}} if kind == "vllm" else {"regex": re.escape(text)}
    # Greedy, so that the same text is always the same tokens.
    return grammar | {"temperature": 0}


def scripted(script: Script, kind: str = "vllm") -> Rewrite:
    """Make an engine of this kind emit `script(body, turn)`. SGLang takes a grammar in bodies of chat completions
    only; on other paths a header has it, which `inside/sglang_cpu.py` reads."""

    def rewrite(request: Request) -> Request:
        body = _generation_body(request)
        if body is None:
            return request
        fields = forced(script(body, num_turns(body)), kind)
        if kind == "sglang" and not request.path.startswith("/v1/chat"):
            return replace(request, headers=(*request.headers, (SCRIPT_HEADER, quote(fields["regex"]))))
        return _with_json(request, body | fields)

    return rewrite


def replayed(script: Script) -> Rewrite:
    """The same for Dynamo's mocker, which can only emit the texts of `DynamoOptions.replies`."""

    def rewrite(request: Request) -> Request:
        body = _generation_body(request)
        if body is None:
            return request
        annotation = f"output_replay_id:{reply_key(script(body, num_turns(body)))}"
        nvext = body.get("nvext") or {}
        annotations = [*(nvext.get("annotations") or []), annotation]
        return _with_json(request, body | {"nvext": nvext | {"annotations": annotations}})

    return rewrite


def reply_key(answer: Answer) -> str:
    return hashlib.sha256(hermes(answer).encode()).hexdigest()[:16]


def anonymous(body_fields: Sequence[str] = IDENTITY_BODY_FIELDS) -> Rewrite:
    """Take away everything by which a client says who it is, so that only its prompts can tell."""

    def rewrite(request: Request) -> Request:
        request = replace(request, headers=_without_identity(request.headers))
        body = _generation_body(request)
        if body is None or not any(name in body for name in body_fields):
            return request
        return _with_json(request, {k: v for k, v in body.items() if k not in body_fields})

    return rewrite


def _without_identity(headers: Headers) -> Headers:
    return tuple(
        (name, value)
        for name, value in headers
        if name.lower() not in IDENTITY_HEADERS and not name.lower().startswith(IDENTITY_HEADER_PREFIXES)
    )


def as_model(model: str) -> Rewrite:
    """Send every generation request to one served model, whatever the client asked for."""

    def rewrite(request: Request) -> Request:
        body = _generation_body(request)
        return request if body is None else _with_json(request, body | {"model": model})

    return rewrite


def typed_messages() -> Rewrite:
    """vLLM and Dynamo reject an assistant's list of parts in Responses input without its optional type."""

    def rewrite(request: Request) -> Request:
        body = _generation_body(request)
        if body is None or not isinstance(body.get("input"), list):
            return request
        items = [{"type": "message"} | i if "role" in i else i for i in body["input"]]
        return _with_json(request, body | {"input": items})

    return rewrite


def without_tool_types(*types: str) -> Rewrite:
    """Dynamo's Responses endpoint rejects `web_search`, which Codex always offers."""

    def rewrite(request: Request) -> Request:
        body = _generation_body(request)
        if body is None or not body.get("tools"):
            return request
        tools = [tool for tool in body["tools"] if tool["type"] not in types]
        return _with_json(request, body | {"tools": tools})

    return rewrite


def at_most_tokens(max_tokens: int) -> Rewrite:
    """Dynamo's mocker generates nothing without a limit, and Responses clients give none."""

    def rewrite(request: Request) -> Request:
        body = _generation_body(request)
        if body is None:
            return request
        name = "max_output_tokens" if "input" in body else "max_tokens"
        return _with_json(request, body | {name: min(body.get(name) or max_tokens, max_tokens)})

    return rewrite


def _generation_body(request: Request) -> Body | None:
    if request.method != "POST" or not request.path.startswith(GENERATION_PATHS):
        return None
    body: Body = json.loads(request.body)
    return body


def _with_json(request: Request, body: Body) -> Request:
    encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return replace(request, body=encoded)
