"""The program inside the sandbox: limits itself, then runs the code on its standard input as an interpreter would.

The interpreter gets it as text, so it imports the standard library only. Arguments: bytes of memory, bytes per
file, and seconds of processor time.
"""

from __future__ import annotations

import ast
import resource
import sys
import traceback

NAME = "<code>"
MAX_OPEN_FILES = 64


def limit(memory_bytes: int, file_bytes: int, cpu_s: int) -> None:
    """Set hard limits, which later code cannot raise."""
    for kind, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def run(source: str) -> None:
    """Run statements; the value of a last expression is printed unless it is None."""
    tree = ast.parse(source, NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    scope = {"__name__": "__main__"}
    exec(compile(tree, NAME, "exec"), scope)  # noqa: S102
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), NAME, "eval"), scope)  # noqa: S307
        if value is not None:
            print(repr(value))


def main() -> None:
    memory_bytes, file_bytes, cpu_s = map(int, sys.argv[1:])
    limit(memory_bytes, file_bytes, cpu_s)
    sys.argv = [""]
    try:
        run(sys.stdin.read())
    except Exception as error:
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename != NAME:
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        sys.exit(1)


if __name__ == "__main__":
    main()
