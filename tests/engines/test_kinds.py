"""Laws of engine addresses."""

from __future__ import annotations

import pytest

from gateway.engines.base import EngineAddress
from gateway.engines.kinds import host_urls, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("vllm://gpu1:8000", EngineAddress("vllm", "http://gpu1:8000", name="gpu1:8000")),
        ("dynamo://front:8000/", EngineAddress("dynamo", "http://front:8000", name="front:8000")),
        ("openai://h:1/v1/", EngineAddress("openai", "http://h:1", name="h:1")),
        (
            "openai+https://api.example.com/base/v1",
            EngineAddress("openai", "https://api.example.com/base", name="api.example.com"),
        ),
        ("sglang://[::1]:30000", EngineAddress("sglang", "http://[::1]:30000", name="[::1]:30000")),
        ("http://gpu1:8000/v1", EngineAddress("http", "http://gpu1:8000", name="gpu1:8000")),
        ("http://gpu1", EngineAddress("http", "http://gpu1", name="gpu1")),
        ("embedded", EngineAddress("embedded", "", name="embedded")),
        ("openai://", EngineAddress("openai", "https://api.openai.com", name="api.openai.com")),
        ("anthropic://", EngineAddress("anthropic", "https://api.anthropic.com", name="api.anthropic.com")),
        ("anthropic://h:1", EngineAddress("anthropic", "http://h:1", name="h:1")),
        (
            "bedrock://eu-west-1/a.b-v1:0,c",
            EngineAddress(
                "bedrock",
                "https://bedrock-runtime.eu-west-1.amazonaws.com/a.b-v1:0,c",
                name="bedrock-runtime.eu-west-1.amazonaws.com",
            ),
        ),
    ],
)
def test_an_engine_is_written_as_kind_and_address(url: str, address: EngineAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("https://gpu1", "vllm\\+https://gpu1"),
        ("gpu1:8000", "vllm://gpu1:8000"),
        ("vlm://gpu1:8000", "use one of vllm"),
        ("vllm://gpu1", "vllm://gpu1:8000"),
        ("vllm://", "write host and port"),
        ("vllm://gpu1:eight", "Port could not be cast"),
        ("vllm+ftp://gpu1:8000", "vllm\\+https://"),
    ],
)
def test_an_error_says_what_to_write(url: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_address(url)


def test_a_hosts_file_lists_engines_and_vllm_is_meant_without_a_kind() -> None:
    text = """
    # our pool
    gpu1:8000
    gpu2:8000 rack=3 a100   # second rack
    dynamo://front:8000
    """
    assert host_urls(text) == ["vllm://gpu1:8000", "vllm://gpu2:8000", "dynamo://front:8000"]
