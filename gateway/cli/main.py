"""The command line: reads arguments, nothing else. Commands are imported when they run, so `--help` is quick."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  turngate demo                                     see what it does, on this machine, without a GPU
  turngate serve --engine vllm://gpu1:8000          in front of one vLLM
  turngate serve --engine dynamo://front:8000       in front of a Dynamo frontend and all its workers
  turngate serve --config turngate.yaml             everything else; see --dump-config for every key

Then point your agents at it: OPENAI_BASE_URL=http://127.0.0.1:8080/v1
"""

SERVE_EXAMPLES = """\
examples:
  turngate serve --engine vllm://gpu1:8000 --engine vllm://gpu2:8000
  turngate serve --engine sglang://gpu1:30000 --set policy.ceiling=0.8
  TURNGATE_LISTEN_PORT=9000 turngate serve --config turngate.yaml
  turngate serve --engine vllm://gpu1:8000 --dump-config > turngate.yaml
"""


def parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    top = argparse.ArgumentParser(
        prog="turngate",
        description="A gateway that keeps fleets of LLM agents inside your engines' KV cache.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=Version, help="show the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = _command(commands, "serve", "run the gateway", SERVE_EXAMPLES)
    check = _command(commands, "check", "validate the configuration and say what it means")
    doctor = _command(commands, "doctor", "ask the engines what they are and what they honour")
    doctor.add_argument("--gateway", metavar="URL", help="ask a running gateway which prompts break their prefix")
    _add_key(doctor)
    engine = _command(commands, "engine", "run the embedded engine alone: a model of one, for trying things out")
    for command in (serve, check, doctor):
        _add_engines(command)
    for command in (serve, check, doctor, engine, _batches(commands), _tools(commands), _top(commands)):
        _add_settings(command)
    _keys(commands)
    _command(commands, "openapi", "print the OpenAPI description of everything that a gateway serves")
    serve.add_argument("--workers", help="processes on this machine (default: 1)")
    serve.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    serve.add_argument("--batches", metavar="DIR", help="serve /v1/files and /v1/batches, and keep them there")
    serve.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", help="port to listen on (default: 8080); 0: any free one")
    engine.add_argument(
        "--host", dest="engine_host", default="127.0.0.1", help="address to listen on (%(default)s)"
    )
    engine.add_argument(
        "--port", dest="engine_port", default=8000, type=int, help="port (%(default)s); 0: any free one"
    )

    demo = _command(
        commands, "demo", "32 agents on a small engine, straight and through the gateway; needs no GPU"
    )
    demo.add_argument("--png", type=Path, default=Path("turngate-demo.png"), help="where the timeline goes")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 failed, 2 wrong arguments or configuration."""
    arguments = parser().parse_args(argv)
    arguments.as_typed = list(sys.argv[1:] if argv is None else argv)
    from gateway.cli import commands
    from gateway.core.errors import ConfigError

    try:
        status = commands.run(arguments, flags(arguments))
        sys.stdout.flush()
        return status
    except ConfigError as error:
        for fault in str(error).splitlines():
            print(f"turngate: {fault}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # as in `turngate openapi | head`: who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


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


def _command(commands: Any, name: str, text: str, epilog: str | None = None) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return command


def _batches(commands: Any) -> argparse.ArgumentParser:
    batches = _command(commands, "batches", "show how the batches of a running gateway go")
    batches.add_argument("--gateway", metavar="URL", default="http://127.0.0.1:8080", help="(%(default)s)")
    _add_key(batches)
    return batches


def _keys(commands: Any) -> None:
    keys = _command(commands, "keys", "make a client key, or hash one that you have, for the configuration")
    keys.add_argument("action", choices=("new", "hash"))
    keys.add_argument("--name", default="", help="its name in logs and limits")
    keys.add_argument("--tenant", default="default", help="who it belongs to (%(default)s)")


def _top(commands: Any) -> argparse.ArgumentParser:
    top = _command(commands, "top", "watch a running gateway: its replicas, and what each session does")
    top.add_argument("--gateway", metavar="URL", default="http://127.0.0.1:8080", help="(%(default)s)")
    _add_key(top)
    top.add_argument("--once", action="store_true", help="print it once, without colour in a pipe")
    top.add_argument("--sort", choices=("phase", "age", "turn", "tokens", "family"), default="phase")
    top.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="between two looks (%(default)s)")
    return top


def _tools(commands: Any) -> argparse.ArgumentParser:
    tools = _command(commands, "tools", "list the tools that the gateway runs for models, or call one by hand")
    tools.add_argument("action", choices=("list", "call"))
    tools.add_argument("name", nargs="?", help="of the tool to call")
    tools.add_argument("arguments", nargs="?", default="{}", help="its arguments, as a JSON object (%(default)s)")
    return tools


def _add_key(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--key",
        metavar="REF",
        help="key to show the gateway, as env:NAME or file:PATH (default: those of the configuration)",
    )


def _add_engines(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--engine", action="append", metavar="URL", help="an engine, such as vllm://host:8000 (repeatable)"
    )
    command.add_argument("--hosts", metavar="FILE", help="more engines: one address per line")


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML (default: $TURNGATE_CONFIG, else ./turngate.yaml if there)",
    )
    command.add_argument(
        "--set",
        action="append",
        type=_pair,
        metavar="KEY=VALUE",
        help="any key of the configuration, such as policy.ceiling=0.8 (repeatable)",
    )
    command.add_argument(
        "--dump-config", action="store_true", help="print every key with its value and help as YAML, and exit"
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


class Version(argparse.Action):
    """Like argparse's own, but asks for the version only when it is wanted."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        from importlib.metadata import version

        print(f"turngate {version('turngate')}")
        parser.exit()
