"""`turngate openapi`: the description of all endpoints, as `/openapi.json` serves it."""

from __future__ import annotations

import argparse

import orjson

from gateway.api import openapi


def add_flags(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace) -> int:
    print(orjson.dumps(openapi.document(), option=orjson.OPT_INDENT_2).decode())
    return 0
