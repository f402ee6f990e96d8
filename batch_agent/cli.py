"""The command `batch-agent`, and the line that shows its progress."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import orjson

from batch_agent.api import BatchAgent
from batch_agent.inputs import read_inputs
from batch_agent.outage import Outage
from batch_agent.report import Report, refuse_other_form
from batch_agent.results import AgentFailed, AgentResult, Usage, as_json
from batch_agent.runtimes import CommandRuntime, OpenCodeRuntime
from batch_agent.spec import KEYWORDS, OUTAGE_S, hint

_LEAST_PAUSE_S = 0.1
"""Shortest pause between two lines on a terminal. Elsewhere, such as in a log, it is `_LOG_PAUSE_S`."""
_LOG_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 1.0
"""Longest pause on a terminal, while no agent ends."""


class Progress:
    """Counts results, and shows them on standard error."""

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        first_log_s: float = 1.0,
    ) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._clock = clock
        self._first_log_s = first_log_s
        self._is_terminal = self._stream.isatty()
        self._began_at = self._shown_at = clock()
        self._num_done = self._num_failed = 0
        self._num_earlier = 0
        """Results that an earlier run has kept. They say nothing of the speed of this one."""
        self._has_shown = False
        self._usage = Usage()

    def __call__(self, result: AgentResult) -> None:
        self._num_done += 1
        self._num_failed += not result.ok
        if result.attempts or not result.ok:
            self._usage += result.usage
        else:
            self._num_earlier += 1
        pause_s = _LEAST_PAUSE_S if self._is_terminal else _LOG_PAUSE_S
        if self._clock() - self._shown_at >= pause_s:
            self._show()

    async def keep_showing(self) -> None:
        """Show at once that the batch runs, and the passing time, until this is cancelled. A log has its first
        line only once the batch has run for a moment: one that cannot run ends with its error alone."""
        if not self._is_terminal:
            await asyncio.sleep(self._first_log_s)
        while True:
            self._show()
            await asyncio.sleep(_LONGEST_PAUSE_S if self._is_terminal else _LOG_PAUSE_S)

    def tell(self, text: str) -> None:
        """Print a line of its own, at once."""
        start = "\r\x1b[K" if self._is_terminal and self._has_shown else ""
        print(f"{start}batch-agent: {text}", file=self._stream, flush=True)
        self._has_shown = False

    def end(self) -> None:
        """Leave the last line. A batch that never began has none."""
        if self._num_done:
            self._show()
        if self._is_terminal and self._has_shown:
            print(file=self._stream)

    def line(self) -> str:
        passed_s = max(1e-9, self._clock() - self._began_at)
        usage, done = self._usage, self._num_done - self._num_earlier
        cached = f", {usage.cached_tokens / usage.prompt_tokens:.0%} cached" if usage.prompt_tokens else ""
        to_come = self._total - self._num_done
        earlier = f" ({self._num_earlier} by an earlier run)" if self._num_earlier else ""
        left = f", about {passed_s / done * to_come:.0f} s left" if done and to_come else ""
        return (
            f"{self._num_done}/{self._total} done{earlier}, {self._num_failed} failed, {passed_s:.0f} s, "
            f"{usage.completion_tokens / passed_s:.0f} tokens/s{cached}{left}"
        )

    def _show(self) -> None:
        self._shown_at, self._has_shown = self._clock(), True
        if self._is_terminal:
            print(f"\r\x1b[K{self.line()}", end="", file=self._stream, flush=True)
        else:
            print(self.line(), file=self._stream, flush=True)


# ---- the command

EXAMPLE = """\
a specification, as YAML or JSON, has the keywords of BatchAgent.run:

  task: "Review this file: {file}"
  inputs: src/**/*.py                   # or in.jsonl, in.csv, or a list: [{file: a.py}, {file: b.py}]
  gateway: http://127.0.0.1:8080
  tools: [read_file, "my_tools:search"]
  max_turns: 4
  output_schema: "my_models:Review"     # or a JSON schema
  runtime: {opencode: {}}               # agents that are OpenCode processes; or {command: {command: [...]}}

exit status: 0 all agents have an output, 1 some have none, 2 the batch cannot be run, 130 interrupted
"""


class SpecError(Exception):
    """The file does not describe a batch."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="batch-agent", description="Runs many agents against one gateway.")
    top.add_argument("--version", action="version", version=f"batch-agent of turngate {version('turngate')}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run the batch of a specification file",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--spec", required=True, type=Path, metavar="FILE", help="the batch, as JSON or YAML")
    run.add_argument("--gateway", metavar="URL", help="where the models run, instead of the place in the file")
    run.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="keep finished turns here, and resume from those that are here",
    )
    run.add_argument(
        "--output", default="-", metavar="FILE", help="where the results go (default: standard output)"
    )
    run.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write results, failures, tokens and where the time went to this .md or .json file",
    )
    run.add_argument(
        "--outage-s",
        type=float,
        metavar="SECONDS",
        help=f"wait so long for a gateway that no longer answers (default: {OUTAGE_S:g})",
    )
    run.add_argument("--as-they-come", action="store_true", help="write results as they come, not in input order")
    run.add_argument("--quiet", action="store_true", help="do not show the progress")
    for flag in ("--no-hoist", "--dashboard"):
        run.add_argument(flag, action="store_true", help=argparse.SUPPRESS)  # of 0.2.0
    run.add_argument("--metrics-port", type=int, help=argparse.SUPPRESS)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.metrics_port is not None:
        print("batch-agent: --metrics-port is not served: the gateway has /metrics", file=sys.stderr)
    try:
        keywords = read_spec(arguments.spec)
        if arguments.gateway:
            keywords["gateway"] = arguments.gateway
        if arguments.checkpoint_dir:
            keywords["checkpoint_dir"] = arguments.checkpoint_dir
        if arguments.outage_s is not None:
            keywords["outage_s"] = arguments.outage_s
        in_order = not (arguments.as_they_come or arguments.dashboard)
        if arguments.report:
            refuse_other_form(arguments.report)
        return asyncio.run(run(keywords, arguments.output, in_order, not arguments.quiet, arguments.report))
    except (SpecError, ValueError, TypeError, ConnectionError, AgentFailed) as error:
        print(f"batch-agent: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"batch-agent: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if arguments.checkpoint_dir:
            print("batch-agent: interrupted; the same command goes on where it was", file=sys.stderr)
        return 130


async def run(
    keywords: dict[str, Any], output: str, in_order: bool, shows_progress: bool, report: Path | None = None
) -> int:
    """Run a batch, write its report if one is wanted, and return the exit status."""
    began_at = time.monotonic()
    reported: list[AgentResult] = []
    progress = Progress(len(keywords["inputs"]))
    outage = Outage(keywords.get("outage_s", OUTAGE_S), progress.tell)
    num_failed = 0
    waiting: dict[int, AgentResult] = {}
    with ExitStack() as stack:
        file = sys.stdout if output == "-" else stack.enter_context(_opened(output))
        if shows_progress:
            stack.callback(progress.end)
            showing = asyncio.create_task(progress.keep_showing(), name="progress")
            stack.callback(showing.cancel)
        async with aclosing(BatchAgent.stream(**keywords, outage=outage)) as results:
            next_index = 0
            async for result in results:
                num_failed += not result.ok
                if report is not None:
                    reported.append(replace(result, transcript=None))
                if shows_progress:
                    progress(result)
                if not in_order:
                    _write(file, result)
                    continue
                waiting[result.index] = result
                while next_index in waiting:
                    _write(file, waiting.pop(next_index))
                    next_index += 1
    if report is not None:
        reported.sort(key=lambda result: result.index)
        Report(reported, time.monotonic() - began_at).write(report)
    return 1 if num_failed else 0


def read_spec(file: Path) -> dict[str, Any]:
    """Read the keywords of `BatchAgent.run`. Raises SpecError."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors write a byte order mark
        spec = orjson.loads(text) if file.suffix.lower() == ".json" else _yaml(text)
    except OSError as error:
        raise SpecError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise SpecError(f"{file}: {error}") from None
    if not isinstance(spec, dict):
        raise SpecError(f"{file} must hold keys and values, as `batch-agent run --help` shows")
    if unknown := sorted(map(str, spec.keys() - (KEYWORDS - {"outage"}))):
        raise SpecError(f"{file}: no such key: {', '.join(key + hint(key) for key in unknown)}")
    if not isinstance(spec.get("task"), str) or not isinstance(spec.get("inputs"), list | str):
        raise SpecError(f"{file} must hold at least `task` and `inputs`: a list, a file or a pattern of files")
    if isinstance(spec["inputs"], str):
        spec["inputs"] = read_inputs(spec["inputs"], spec["task"])
    for key in ("output_schema", "on_result", "compact"):
        if isinstance(spec.get(key), str):
            spec[key] = _named(spec[key], file.parent)
    if "tools" in spec:
        if not isinstance(spec["tools"], list) or not all(isinstance(tool, str) for tool in spec["tools"]):
            raise SpecError(f"{file}: `tools` must be a list of names")
        spec["tools"] = [_named(tool, file.parent) if ":" in tool else tool for tool in spec["tools"]]
    if "runtime" in spec:
        spec["runtime"] = _runtime(spec["runtime"])
    return spec


def _runtime(given: Any) -> OpenCodeRuntime | CommandRuntime:
    kinds = {"opencode": OpenCodeRuntime, "command": CommandRuntime}
    if isinstance(given, str):
        given = {given: {}}
    if not isinstance(given, dict) or len(given) != 1 or (kind := next(iter(given))) not in kinds:
        raise SpecError(f"runtime is one of {', '.join(kinds)} with its settings, not {given!r}")
    try:
        made: OpenCodeRuntime | CommandRuntime = kinds[kind](**(given[kind] or {}))
    except TypeError as error:
        raise SpecError(f"runtime {kind}: {error}") from None
    return made


def _named(path: str, folder: Path) -> Any:
    """Import `module:attribute`, from the current directory and the folder of the file too. Raises SpecError."""
    module, _, attribute = path.partition(":")
    places = ["", str(folder.absolute())]
    sys.path[:0] = places
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{path}: {error}") from None
    finally:
        for place in places:
            sys.path.remove(place)


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {error}") from None


def _opened(path: str) -> TextIO:
    return Path(path).open("w", encoding="utf-8")


def _write(file: TextIO, result: AgentResult) -> None:
    line = orjson.dumps(as_json(result), default=str).decode()
    print(line, file=file, flush=True)


if __name__ == "__main__":
    sys.exit(main())
