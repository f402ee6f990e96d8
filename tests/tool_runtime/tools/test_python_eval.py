from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clock import clock as clock
from tests.tool_runtime.sandbox.here import in_sandbox
from tests.tool_runtime.tools.calls import called
from tool_runtime.tools.python_eval import build
from tool_runtime.types import Effect, Result, Status


async def run(code: str, **settings: Any) -> Result:
    return await called(build(settings), code=code)


@in_sandbox
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("6 * 7", "42\n"),
        ("print('a')\nx = [1]\nx", "a\n[1]\n"),
        ("def f():\n    return 'é'\nf()", "'é'\n"),
        ("None", "(no output)"),
        ("", "(no output)"),
        ("import math, json, statistics; math.floor(2.5)", "2\n"),
        ("import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()", "t\n"),
        ("open('/tmp/a', 'w').write('x'); open('/tmp/a').read()", "'x'\n"),
        ("input", "<built-in function input>\n"),
    ],
)
async def test_code_gives_what_it_prints_and_its_last_value(code: str, text: str) -> None:
    result = await run(code)
    assert (result.status, result.text) == (Status.OK, text)


@in_sandbox
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 / 0", 'File "<code>", line 1, in <module>\nZeroDivisionError'),
        ("def f(:", "SyntaxError"),
        ("import sys; print('x'); sys.exit(3)", "x\n\n[ended with status 3]"),
        ("x = ' ' * 10 ** 10", "MemoryError"),
        ("input()", "EOFError"),
        ("exec('def f(): f()\\nf()')", "RecursionError"),
    ],
)
async def test_code_that_fails_is_an_error_that_says_why(code: str, told: str) -> None:
    result = await run(code)
    assert (result.status, told in result.text) == (Status.ERROR, True), result.text
    assert str(Path(__file__).parents[3]) not in result.text


@in_sandbox
def test_each_call_is_a_run_of_its_own() -> None:
    assert build({}).effect is Effect.DESTRUCTIVE


@pytest.mark.parametrize(
    ("bwrap", "told"),
    [
        ("no-such-bwrap", "install bubblewrap"),
        ("#!/bin/sh\necho no permission to create a namespace >&2; exit 1", "no permission to create a namespace"),
        ("#!/bin/sh\necho 0", "does not start: 0"),
    ],
)
def test_without_a_working_sandbox_there_is_no_tool(tmp_path: Path, bwrap: str, told: str) -> None:
    command = tmp_path / "bwrap"
    if bwrap.startswith("#!"):
        command.write_text(bwrap)
        command.chmod(0o755)
        bwrap = str(command)
    with pytest.raises(ValueError, match="only in a sandbox") as error:
        build({"bwrap": bwrap})
    assert told in str(error.value)


def test_an_interpreter_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match="no Python interpreter"):
        build({"python": "/bin/false", "bwrap": sys.executable})
