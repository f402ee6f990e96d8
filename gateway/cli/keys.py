"""`turngate keys`: client keys, and the entries of the configuration that hold their hashes."""

from __future__ import annotations

import argparse
import getpass
import json
import sys

from gateway.access.keys import LONG_CHARS, hashed, new_key


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("new", "hash"), help="make a key, or hash the one that you type or pipe in"
    )
    parser.add_argument("--name", default="", help="call the key this in logs and limits")
    parser.add_argument("--tenant", default="default", help="give the key to this tenant (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "new":
        key = new_key()
        print("# The key. It is shown this once and kept nowhere: give it to its user.")
        print(f"# {key}")
    else:
        key = (getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
        if not key:
            print("turngate: no key was given", file=sys.stderr)
            return 1
        if len(key) < LONG_CHARS:
            least = LONG_CHARS
            text = f"shorter than {least} characters; `turngate keys new` makes one that cannot be guessed"
            print(f"turngate: warning: the key is {text}", file=sys.stderr)
    entry = {"key": hashed(key), "name": arguments.name, "tenant": arguments.tenant}
    print("# For the configuration, under `keys`:")
    print(f"- {json.dumps(entry)}")
    return 0
