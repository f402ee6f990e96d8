"""Read token usage from an answer of any dialect: every engine kind answers in all of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import orjson

from gateway.core import fields
from gateway.engines.base import (
    NO_CLAIMS,
    RESPONSES,
    Abilities,
    Advice,
    Claims,
    Json,
    Outgoing,
    OutgoingRequest,
    PolledPool,
    Repair,
    Report,
)
from policies.types import Usage


def usage_of(event: Mapping[str, Any]) -> Usage | None:
    """Usage in an answer body or stream event: at its top, in its `response`, or in its `message`.

    Anthropic's `input_tokens` leave out what was read from and written to the cache; `prompt_tokens` here is
    always the whole prompt.
    """
    raw = (
        fields.obj(event, "usage")
        or fields.obj(fields.obj(event, "response"), "usage")
        or fields.obj(fields.obj(event, "message"), "usage")
    )
    if not raw:
        return None
    if "prompt_tokens" in raw:
        cached = fields.integer(fields.obj(raw, "prompt_tokens_details"), "cached_tokens")
        return Usage(fields.integer(raw, "prompt_tokens"), cached, fields.integer(raw, "completion_tokens"))
    prompt, output = fields.integer(raw, "input_tokens"), fields.integer(raw, "output_tokens")
    if "input_tokens_details" in raw:
        return Usage(prompt, fields.integer(fields.obj(raw, "input_tokens_details"), "cached_tokens"), output)
    cached = fields.integer(raw, "cache_read_input_tokens")
    if prompt is not None:
        prompt += (cached or 0) + (fields.integer(raw, "cache_creation_input_tokens") or 0)
    return Usage(prompt, cached, output)


# ---- whose field an engine refuses, from the text of its 400

# Where engines put the name of a refused field: pydantic (`body.x`), serde (unknown field `x`), Dynamo
# (Unsupported parameter(s): `x`, `y`), vLLM (Got x 5 but ...). A name elsewhere, such as in a list of what was
# expected or in the client's own text that the engine repeats, is no complaint about it.
_BEFORE = (
    r"(?:body[.'\", ]+|unknown field |unsupported parameter\(s\): (?:`\w+`, )*|got |unexpected keyword argument )"
)
_EXPECTED = re.compile(r"expected one of.*", re.DOTALL)


def names_field(message: str, name: str) -> bool:
    """Whether an error text complains about the request field `name`."""
    complaint = rf"{_BEFORE}[`'\"]?{re.escape(name)}\b"
    return re.search(complaint, _EXPECTED.sub("", message), re.IGNORECASE) is not None


# ---- what clients send to `/v1/responses` and an engine refuses with 400, said in a way that it takes. Pure

NONE = Repair()


def typed_messages(path: str, body: Json) -> Repair:
    """An assistant's list of parts says that it is a message. OpenAI's `type` is optional and OpenCode leaves it
    out; vLLM 0.32 and Dynamo 1.6 then match no item type."""
    items = body.get("input")
    if path != RESPONSES or not isinstance(items, list) or not any(map(_lacks_type, items)):
        return NONE
    typed = [{"type": "message", **item} if _lacks_type(item) else item for item in items]
    return Repair({"input": typed}, ("input: assistant messages were given their type",))


def without_tools(path: str, body: Json, types: Collection[str]) -> Repair:
    """Tools of types that the engine does not have are not offered to the model."""
    tools = body.get("tools")
    if path != RESPONSES or not isinstance(tools, list):
        return NONE
    kept = [tool for tool in tools if _type(tool) not in types]
    gone = sorted({str(_type(tool)) for tool in tools} & set(types))
    return Repair({"tools": kept}, (f"tools: {', '.join(gone)} left out",)) if gone else NONE


def without_grammars(path: str, body: Json) -> Repair:
    """Custom tools take any text: vLLM 0.32 runs them, but not under a grammar (Codex's `apply_patch`)."""
    tools = body.get("tools")
    if path != RESPONSES or not isinstance(tools, list) or not any(map(_has_grammar, tools)):
        return NONE
    free = [{**tool, "format": {"type": "text"}} if _has_grammar(tool) else tool for tool in tools]
    return Repair({"tools": free}, ("tools: custom tools lost their grammar",))


def _lacks_type(item: Any) -> bool:
    if not isinstance(item, dict) or item.get("type") is not None:
        return False
    return item.get("role") == "assistant" and isinstance(item.get("content"), list)


def _has_grammar(tool: Any) -> bool:
    return _type(tool) == "custom" and bool(_type(tool.get("format")) == "grammar")


def _type(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


# ---- any OpenAI-compatible server

_REFUSAL_STATUSES = frozenset((400, 422))
_LENGTH_KEYS = ("max_model_len", "context_window")
_METRICS_OF = {"vllm": "vllm:", "sglang": "sglang:", "dynamo": "dynamo_", "turngate": "turngate_"}
"""How the names of each kind's metrics begin."""


class OpenAI:
    """The degraded kind: slots and order work, capacity is not known and placement is blind."""

    kind = "openai"
    metrics_paths: tuple[str, ...] = ("/v1/models",)
    probe_paths: tuple[str, ...] = ("/openapi.json",)
    is_rented = False
    salt_paths: frozenset[str] = frozenset()
    names_responses = False
    claim_keys: frozenset[str] = frozenset()
    claim_headers: frozenset[str] = frozenset()
    """Body keys and lower-case headers by which a client would jump queues or pick workers."""

    def abilities(self) -> Abilities:
        return Abilities(honours_priority=False)

    def learn(self, pages: Mapping[str, str], abilities: Abilities) -> None:
        if paths := fields.obj(json_page(pages, "/openapi.json"), "paths"):
            abilities.paths = frozenset(paths)
        abilities.looks_like = _other_kind(pages.get("/metrics", ""), self.kind)

    def rendering(self, model: str, messages: list[Json], tools: list[Json]) -> tuple[str, Json] | None:
        return None

    def rendered(self, answer: str) -> str:
        return ""

    def outgoing(self, asked: OutgoingRequest, abilities: Abilities) -> Outgoing:
        return Outgoing()

    def closing(self, session_id: str, abilities: Abilities) -> tuple[str, dict[str, str]] | None:
        return None

    def repaired(self, path: str, body: Json) -> Repair:
        return NONE

    def claims(self, asked: OutgoingRequest) -> tuple[Claims, Claims]:
        """Those that the client's request makes: honoured, and dropped."""
        if self.claim_keys.isdisjoint(asked.body) and self.claim_headers.isdisjoint(asked.headers):
            return NO_CLAIMS, NO_CLAIMS
        made = Claims(self.claim_keys.intersection(asked.body), self.claim_headers.intersection(asked.headers))
        return (made, NO_CLAIMS) if asked.may_prioritise else (NO_CLAIMS, made)

    def refused_fields(self, status: int, message: str, sent: Outgoing) -> frozenset[str]:
        if status not in _REFUSAL_STATUSES:
            return frozenset()
        return frozenset(name for name in _names(sent.body) if names_field(message, name.rpartition(".")[2]))

    def is_queue_full(self, message: str) -> bool:
        return False

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        models, lengths = read_models(pages)
        return Report(models, lengths, (PolledPool(""),) if models else ())

    def served_by(self, event: Json) -> str | None:
        return None

    def without_read_back(self, event: bytes) -> bytes:
        return event

    def usage(self, event: Json) -> Usage | None:
        return usage_of(event)

    def advice(self, report: Report, abilities: Abilities) -> tuple[Advice, ...]:
        return (
            Advice(
                "a plain OpenAI-compatible server says nothing of its KV cache and takes no hints",
                "if it is vLLM, SGLang or Dynamo, say so in the engine's URL: vllm://, sglang:// or dynamo://",
            ),
        )


def json_page(pages: Mapping[str, str], path: str) -> Json:
    """A polled page as a JSON object; empty when it is missing or something else."""
    return json_object(pages.get(path, ""))


def json_object(text: str | bytes) -> Json:
    """Empty when the text is something else."""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def read_models(pages: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Names that `/v1/models` lists, and the context length of those that have one there."""
    lengths: dict[str, int] = {}
    names = []
    for row in fields.items(json_page(pages, "/v1/models"), "data"):
        if isinstance(row, dict) and (name := fields.text(row, "id")):
            names.append(name)
            if length := next((n for key in _LENGTH_KEYS if (n := fields.integer(row, key))), None):
                lengths[name] = length
    return tuple(names), lengths


@lru_cache
def is_at_least(version: str, least: tuple[int, int, int]) -> bool:
    """Whether `1.2.3+cpu` is that version or a later one; False when it is not a version."""
    numbers = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return numbers is not None and tuple(int(n or 0) for n in numbers.groups()) >= least


def _other_kind(metrics: str, kind: str) -> str:
    """Empty: its own, or one that is not known by its metrics."""
    if kind not in _METRICS_OF:
        return ""
    page = f"\n{metrics}"
    found = [other for other, prefix in _METRICS_OF.items() if f"\n{prefix}" in page]
    return found[0] if found and kind not in found else ""


def _names(body: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every key that we set, dotted, parents first."""
    found = []
    for key, value in body.items():
        found.append(prefix + key)
        if isinstance(value, Mapping):
            found += _names(value, f"{prefix}{key}.")
    return found
