"""Laws of optional packages: all missing packages are named at once, before the gateway starts."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import loading
from gateway.config.loading import refuse_missing
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError

WANTS_ALL: dict[str, Any] = {
    "engines": ["bedrock://us-east-1", {"url": "vllm://a:1", "kv_events": ["tcp://a:2"]}],
    "cluster": {"redis": "redis://r:1"},
    "batches": {"redis": "redis://r:1"},
    "tracing": {"endpoint": "http://c:4318"},
    "tools": {"mcp": [{"name": "docs", "command": ["docs-server"]}]},
}


def test_each_missing_package_is_a_line_with_what_to_install() -> None:
    settings = Settings.model_validate(WANTS_ALL)
    with pytest.raises(ConfigError) as caught:
        refuse_missing(settings, loading.addresses(settings), lambda package: False)
    lines = str(caught.value).splitlines()
    extras = [line.partition("pip install ")[2] for line in lines]
    assert {extra.strip("'") for extra in extras} == {
        f"turngate[{name}]" for name in ("redis", "otel", "mcp", "kvevents", "bedrock")
    }
    assert len(lines) == 6


def test_what_is_not_configured_need_not_be_there() -> None:
    settings = Settings.model_validate({"engines": ["vllm://a:1"]})
    refuse_missing(settings, loading.addresses(settings), lambda package: False)
    all_wanted = Settings.model_validate(WANTS_ALL)
    refuse_missing(all_wanted, loading.addresses(all_wanted), lambda package: True)
