"""The embedded engine: it speaks as vLLM does."""

from __future__ import annotations

from gateway.engines.vllm import Vllm


class Embedded(Vllm):
    kind = "embedded"
