"""`dynamo.mocker` with a tool-call and a reasoning parser on its model card; its command line has none.

Runs inside the Dynamo environment; TOOL_PARSER and REASONING_PARSER name the parsers.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

import os
from typing import Any

import dynamo.mocker.config
import dynamo.mocker.main

build_runtime_config = dynamo.mocker.config.build_runtime_config


def with_parsers(engine_arguments: Any) -> Any:
    block_size, runtime_config = build_runtime_config(engine_arguments)
    runtime_config.tool_call_parser = os.environ.get("TOOL_PARSER") or None
    runtime_config.reasoning_parser = os.environ.get("REASONING_PARSER") or None
    return block_size, runtime_config


if __name__ == "__main__":
    dynamo.mocker.main.build_runtime_config = with_parsers
    dynamo.mocker.main.main()
