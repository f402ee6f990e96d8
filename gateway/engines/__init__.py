"""Engine kinds by name."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from gateway.engines.anthropic import Anthropic
from gateway.engines.base import Engine
from gateway.engines.bedrock import Bedrock
from gateway.engines.dynamo import Dynamo
from gateway.engines.openai import OpenAI
from gateway.engines.sglang import SGLang
from gateway.engines.vllm import EmbeddedAdapter, Vllm

KINDS: dict[str, type[Engine]] = {
    "vllm": Vllm,
    "sglang": SGLang,
    "dynamo": Dynamo,
    "openai": OpenAI,
    "anthropic": Anthropic,
    "bedrock": Bedrock,
    "embedded": EmbeddedAdapter,
}


def named(kind: str) -> Engine:
    """The engine kind of a short name, or of an import path `package.module:Class`. Raises ValueError."""
    if kind in KINDS:
        return KINDS[kind]()
    module, _, name = kind.partition(":")
    if not name:
        raise ValueError(
            f"there is no engine kind {kind!r}: use one of {', '.join(KINDS)}, or package.module:Class"
        )
    try:
        return cast(Engine, getattr(import_module(module), name)())
    except (ImportError, AttributeError) as error:
        raise ValueError(f"engine kind {kind!r} cannot be imported: {error}") from None
