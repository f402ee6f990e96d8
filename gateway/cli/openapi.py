"""`turngate openapi`: the description of all endpoints, as `/openapi.json` serves it."""

from __future__ import annotations

import argparse

import orjson

from gateway.api import routes


def add_flags(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace) -> int:
    print(orjson.dumps(routes.document(), option=orjson.OPT_INDENT_2).decode())
    return 0
