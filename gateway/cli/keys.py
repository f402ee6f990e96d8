"""`turngate keys`: makes client keys, and the entries of the configuration that hold their hashes."""

from __future__ import annotations

import getpass
import json
import sys
from argparse import Namespace

from gateway.access import client_keys


def keys(arguments: Namespace) -> int:
    """new: a fresh key and its entry. hash: the entry of a key that is typed, or comes on standard input."""
    if arguments.action == "new":
        key = client_keys.new_key()
        print("# The key. It is shown this once and kept nowhere: give it to its user.")
        print(f"# {key}")
    else:
        key = (getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
        if not key:
            print("turngate: no key was given", file=sys.stderr)
            return 1
        if len(key) < client_keys.LONG_CHARS:
            least = client_keys.LONG_CHARS
            text = f"shorter than {least} characters; `turngate keys new` makes one that nobody guesses"
            print(f"turngate: warning: the key is {text}", file=sys.stderr)
    entry = {"key": client_keys.hashed(key), "name": arguments.name, "tenant": arguments.tenant}
    print("# For the configuration, under `keys`:")
    print(f"- {json.dumps(entry)}")
    return 0
