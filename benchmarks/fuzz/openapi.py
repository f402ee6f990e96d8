"""Schemathesis against a running gateway: no answer breaks `/openapi.json`, is a 500, or takes too long.

    python -m benchmarks.fuzz.openapi --seconds 600

The gateway has keys, batches and an embedded engine that is quick. Each failure is printed with a curl
command for each; exit status 1 then.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from benchmarks.results import command_parser, write

KEY = "fuzz-key-of-one-tenant"
LEFT_OUT = "positive_data_acceptance"
"""The only check that is not made: what is right in a model call is its engine's to judge."""
HANGS_S = 20
STARTS_S = 60
SPEED = 10_000
"""Of the engine; it is not what is looked at."""
_CASES = re.compile(r"([\d,]+) generated")


@dataclass(frozen=True, slots=True)
class SchemathesisResult:
    num_cases: int
    took_s: float
    output: str
    """All that Schemathesis printed."""
    is_fine: bool


@contextmanager
def gateway() -> Iterator[str]:
    """A process of its own; its base URL. Raises RuntimeError when it does not begin or does not end well."""
    with TemporaryDirectory() as folder:
        settings = {
            "listen": {"port": 0},
            "engines": ["embedded"],
            "embedded": {"model": "m", "capacity_tokens": 65_536, "speed": SPEED},
            "keys": [{"key": "env:FUZZ_KEY"}],
            "batches": {"directory": f"{folder}/batches"},
            "logging": {"level": "error"},
        }
        Path(folder, "turngate.yaml").write_bytes(orjson.dumps(settings))
        log = Path(folder, "log")
        command = [sys.executable, "-m", "gateway", "serve", "--config", f"{folder}/turngate.yaml"]
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                command, env=os.environ | {"FUZZ_KEY": KEY}, stdout=subprocess.PIPE, stderr=errors
            ) as process,
        ):
            try:
                assert process.stdout is not None
                banner = next((line for line in process.stdout if line.startswith(b"Ready.")), b"")
                if not banner:
                    raise RuntimeError(f"the gateway does not start: {log.read_text()}")
                yield banner.decode().strip().partition("OPENAI_BASE_URL=")[2].removesuffix("/v1")
            finally:
                process.send_signal(signal.SIGTERM)
                status = process.wait(STARTS_S)
        if status or log.read_text():
            raise RuntimeError(f"the gateway ended with status {status} and said: {log.read_text()[-4000:]}")


def fuzz(url: str, num_examples: int, seed: int, max_s: int | None = None) -> SchemathesisResult:
    """One run. `num_examples`: of each operation. `max_s`: as many as come until then."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
        command += ["--header", f"Authorization: Bearer {KEY}", "--checks", "all", "--exclude-checks", LEFT_OUT]
        command += ["--seed", str(seed), "--max-examples", str(num_examples), "--request-timeout", str(HANGS_S)]
        command += ["--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all", "--warnings", "off"]
        command += ["--continue-on-failure", "--no-color", "--generation-database", "none"]
        command += [] if max_s is None else ["--max-time", str(max_s)]
        Path(folder, "schemathesis.toml").write_text(_RULES)
        begun_at = time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)
    output = ended.stdout + ended.stderr
    cases = _CASES.search(output)
    return SchemathesisResult(
        int(cases[1].replace(",", "")) if cases else 0, time.monotonic() - begun_at, output, ended.returncode == 0
    )


_RULES = """\
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501]
"""
"""501: the embedded engine does not serve each path."""


def main() -> int:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--examples", type=int, default=100, help="of each operation (%(default)s)")
    parser.add_argument("--seconds", type=int, help="again and again, for so long")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with gateway() as url:
        result = fuzz(url, options.examples, options.seed, options.seconds)
    print(result.output)
    text = (
        f"{result.num_cases:,} requests in {result.took_s:.0f} s over every operation of `/openapi.json`: "
        f"{'no failure' if result.is_fine else 'FAILURES'}. All checks but {LEFT_OUT}; a hang is {HANGS_S} s."
    )
    data = {"cases": result.num_cases, "took_s": result.took_s, "is_fine": result.is_fine}
    write(options.results, "openapi", text, data)
    return 0 if result.is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
