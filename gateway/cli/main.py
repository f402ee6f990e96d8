"""The command line. A command is one line of `COMMANDS` and one module, which is imported once it is chosen."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  turngate demo                                     see the effect on this machine, without a GPU
  turngate serve --engine vllm://gpu1:8000          serve in front of one vLLM
  turngate serve --engine dynamo://front:8000       serve in front of a Dynamo frontend and all its workers
  turngate serve --config turngate.yaml             use everything else; --dump-config explains every key

Then point your agents at it: OPENAI_BASE_URL=http://127.0.0.1:8080/v1
"""


@dataclass(frozen=True, slots=True)
class Command:
    """Its module has `add_flags(parser)`, and `run(arguments, settings)` or, unconfigured, `run(arguments)`."""

    summary: str
    is_configured: bool = True
    """It reads the configuration, and takes the flags that change it."""
    takes_engines: bool = False
    is_server: bool = False
    """It writes the configured log. Other commands log errors alone, as they print their findings themselves."""


COMMANDS = {
    "serve": Command("run the gateway", takes_engines=True, is_server=True),
    "check": Command("validate the configuration and explain its meaning", takes_engines=True),
    "doctor": Command(
        "examine the engines and this machine, and advise how to get more out of them", takes_engines=True
    ),
    "bench": Command(
        "find out what the gate gains on your engine, in a quarter of an hour at most", takes_engines=True
    ),
    "engine": Command(
        "run the embedded engine alone; it imitates a model, for trials without a GPU", is_server=True
    ),
    "batches": Command("show the progress of the batches of a running gateway"),
    "tools": Command("list the tools that the gateway runs for models, or call one by hand"),
    "top": Command("watch the replicas and the sessions of a running gateway"),
    "why": Command("show where the time of a session, an agent or the whole fleet goes, and what would help"),
    "keys": Command("make a client key for the configuration, or hash an existing one", is_configured=False),
    "openapi": Command("print the OpenAPI description of all endpoints of a gateway", is_configured=False),
    "demo": Command(
        "run a workload of agents, straight and through the gateway; needs no GPU", is_configured=False
    ),
}


def parser(detailed: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """All commands; those that are `detailed` with their flags, for which their modules are imported."""
    top = argparse.ArgumentParser(
        prog="turngate",
        description="A gateway that keeps fleets of LLM agents inside your engines' KV cache.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=Version, help="show the version and exit")
    below = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary = command.summary
        sub = below.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in detailed:
            _module(name).add_flags(sub)
            if command.takes_engines:
                _add_engines(sub)
            if command.is_configured:
                _add_settings(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 done, 1 failed, 2 wrong arguments or configuration, 130 interrupted."""
    typed = list(sys.argv[1:] if argv is None else argv)
    if not typed:
        parser(()).print_help(sys.stderr)
        return 2
    arguments = parser(typed[:1]).parse_args(typed)
    arguments.typed = typed
    from gateway.core.errors import ConfigError

    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except ConfigError as error:
        for fault in str(error).splitlines():
            print(f"turngate: {fault}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # as in `turngate openapi | head`, which reads no further
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _run(arguments: argparse.Namespace) -> int:
    command, module = COMMANDS[arguments.command], _module(arguments.command)
    if not command.is_configured:
        return int(module.run(arguments))
    from gateway.config import loading
    from gateway.telemetry import logs
    from tool_runtime.distributions import overwritten

    settings = loading.load(flags(arguments), arguments.config)
    loading.import_from_its_folder(loading.chosen_file(arguments.config))
    if arguments.dump_config:
        print(loading.dump(settings), end="")
        return 0
    if (
        mixture := overwritten()
    ) is not None:  # the package that would warn at its import may be overwritten itself
        print(f"turngate: warning: {mixture}", file=sys.stderr)
    logs.setup(settings.logging if command.is_server else settings.logging.model_copy(update={"level": "error"}))
    return int(module.run(arguments, settings))


def _module(command: str) -> Any:
    return import_module(f"gateway.cli.{command}")


def flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments as dotted configuration keys; those that were not given are left out."""
    given: dict[str, Any] = {
        "engines": getattr(arguments, "engine", None),
        "hosts_file": getattr(arguments, "hosts", None),
        "batches.directory": getattr(arguments, "batches", None),
        "listen.host": getattr(arguments, "host", None),
        "listen.port": getattr(arguments, "port", None),
        "cluster.workers": getattr(arguments, "workers", None),
        **dict(getattr(arguments, "set", None) or ()),
    }
    return {path: value for path, value in given.items() if value is not None}


def _add_engines(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--engine",
        action="append",
        metavar="URL",
        help="use this engine, such as vllm://host:8000 or http://host:8000 (repeatable)",
    )
    command.add_argument("--hosts", metavar="FILE", help="use the engines of this file too; one address per line")


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read this YAML file (default: $TURNGATE_CONFIG, else ./turngate.yaml if it exists)",
    )
    command.add_argument(
        "--set",
        action="append",
        type=_pair,
        metavar="KEY=VALUE",
        help="set one key of the configuration, such as policy.ceiling=0.8 (repeatable)",
    )
    command.add_argument(
        "--dump-config",
        action="store_true",
        help="print every key with its value and its explanation as YAML, and exit",
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


class Version(argparse.Action):
    """Like argparse's own, but looks the version up only when it is wanted."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        from importlib.metadata import version

        print(f"turngate {version('turngate')}")
        parser.exit()
