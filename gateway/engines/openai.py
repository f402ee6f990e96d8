"""Any OpenAI-compatible server, and OpenAI's own API, which is rented."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.engines.base import Abilities, Advice, EngineAdapter, EngineAddress, Report


class OpenAI(EngineAdapter):
    """The degraded kind: all that `EngineAdapter` has by default, and nothing more."""

    kind = "openai"
    service_url = "https://api.openai.com"
    key_variable = "OPENAI_API_KEY"
    throttles = True
    hides_sessions = True

    def is_rented(self, address: EngineAddress) -> bool:
        """OpenAI itself, and a server that wants a key over TLS. An operator's own server is reached over plain
        HTTP, or without a key."""
        url = address.base_url
        return url == self.service_url or (url.startswith("https://") and bool(address.api_key))

    def advice(self, report: Report, abilities: Abilities) -> Iterator[Advice]:
        yield _PLAIN
        yield from super().advice(report, abilities)


class Unnamed(EngineAdapter):
    """A server at a plain `http://` address, until it shows its kind; for good if it shows none."""

    kind = "http"

    def advice(self, report: Report, abilities: Abilities) -> Iterator[Advice]:
        yield _PLAIN
        yield from super().advice(report, abilities)


_PLAIN = Advice(
    "a plain OpenAI-compatible server says nothing of its KV cache and takes no hints",
    "if it is vLLM, SGLang or Dynamo, say so in the engine's URL: vllm://, sglang:// or dynamo://",
)
