"""`turngate keys`: makes client keys, and the entries of the configuration that hold their hashes."""

from __future__ import annotations

import getpass
import json
import sys
from argparse import Namespace

from gateway.access import key_hash


def keys(arguments: Namespace) -> int:
    """new: a fresh key and its entry. hash: the entry of a key that is typed, or comes on standard input."""
    if arguments.action == "new":
        key = key_hash.new_key()
        print("# The key. It is shown this once and kept nowhere: give it to its user.")
        print(f"# {key}")
    else:
        key = (getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
        if not key:
            print("turngate: no key was given", file=sys.stderr)
            return 1
        if len(key) < key_hash.LONG_CHARS:
            text = (
                f"shorter than {key_hash.LONG_CHARS} characters; `turngate keys new` makes one that nobody guesses"
            )
            print(f"turngate: warning: the key is {text}", file=sys.stderr)
    entry = {"key": key_hash.hashed(key), "name": arguments.name, "tenant": arguments.tenant}
    print("# For the configuration, under `keys`:")
    print(f"- {json.dumps(entry)}")
    return 0
