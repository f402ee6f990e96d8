"""Any OpenAI-compatible server: nothing is assumed, nothing is hinted. The other kinds start from here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from gateway.core import fields
from gateway.engines.base import NO_CLAIMS, Abilities, Advice, OutgoingRequest, Claims, Json, Outgoing, Pool, Repair, Report
from gateway.engines.refusals import names_field
from gateway.engines.responses_input import NONE
from gateway.engines.usage import usage_of
from policies.types import Usage

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
        return Report(models, lengths, (Pool(""),) if models else ())

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
