"""The program of a `Killable`: answers requests with a function, in a process that can be killed at any moment.

Law: this process does not outlive its use. The kernel ends it `GRACE_S` after the time of a request, whatever the
function does. It also ends with its standard input, which means that its parent is gone; it notices this while the
function runs without Python's lock.

It is started by its path and imports the standard library only. Arguments: the path of a file with the function
`answer`, seconds, bytes, a part of all requests as a JSON object, and the request if there is only one. Requests
are lines of JSON. A reply is a line `KIND LENGTH`, followed by so many bytes of text.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

READY, FULL = "ready", "full"
"""Kinds of replies that this program makes itself. FULL says that memory ran out; it takes no further request."""
GRACE_S = 1.0
"""Time for the parent to end this process and to report the reason."""
_INTERPRETER_BYTES = 256 * 1024 * 1024
"""Address space of the interpreter, beside that of a request."""
_OPEN_FILES = 16


def limit(memory_bytes: int) -> None:
    """Set hard limits, which later code cannot raise. A limit that the system lacks is skipped."""
    for kind, most in (
        (resource.RLIMIT_AS, memory_bytes + _INTERPRETER_BYTES),
        (resource.RLIMIT_FSIZE, memory_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def main() -> None:
    path, seconds, memory, fixed, *single = sys.argv[1:]
    answer = _loaded(path)
    limit(int(memory))
    requests: SimpleQueue[str | bytes] = SimpleQueue()
    if single:
        requests.put(single[0])
    else:
        threading.Thread(target=_listen, args=(requests,), daemon=True).start()
        _say(READY, "")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        request = {**json.loads(fixed), **json.loads(requests.get())}
        signal.setitimer(signal.ITIMER_REAL, float(seconds) + GRACE_S)
        try:
            _say(*answer(request))
        except MemoryError:
            _say(FULL, "")
        signal.setitimer(signal.ITIMER_REAL, 0)
        if single:
            return


def _loaded(path: str) -> Callable[[dict[str, Any]], tuple[str, str]]:
    spec = importlib.util.spec_from_file_location("answering", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[dict[str, Any]], tuple[str, str]] = module.answer
    return found


def _listen(requests: SimpleQueue[str | bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _say(kind: str, text: str) -> None:
    payload = text.encode("utf-8", "replace")
    sys.stdout.buffer.write(f"{kind} {len(payload)}\n".encode() + payload)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
