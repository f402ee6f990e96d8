"""Throws a million inputs at all parsers of what others send: no 500, no hang, no leak.

    python -m benchmarks.fuzz --inputs 1000000

Guided by coverage where atheris is installed, else by chance; each target is a process of its own. An input that
breaks a law of `benchmarks/fuzz/targets.py`, takes longer than HANGS_S, or pushes the process past LEAKS_MIB ends
its target, and is written to `benchmarks/fuzz/raw/TARGET.bin`. Exit status 1 then.
"""

from __future__ import annotations

import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.fuzz.inputs import SEEDS, WORDS, mutated
from benchmarks.fuzz.targets import TARGETS
from benchmarks.results import command_parser, write

SHARES = {
    "sse": 25,
    "relay": 20,
    "bodies": 20,
    "headers": 10,
    "errors": 8,
    "pages": 5,
    "configuration": 2,
    "path": 10,
}
"""Percent of all inputs."""
HANGS_S = 10
LEAKS_MIB = 1024
RAW = Path(__file__).with_name("raw")
"""Not committed."""
_DONE = re.compile(r"Done (\d+) runs")
_COVERAGE = re.compile(r"cov: (\d+)")


@dataclass(frozen=True, slots=True)
class TargetResult:
    target: str
    num_inputs: int
    took_s: float
    failure: str
    """Empty: none."""
    coverage: int | None = None
    """Edges of our code. None: not measured."""


def by_chance(target: str, num_inputs: int, seed: int, law: Callable[[bytes], None] | None = None) -> TargetResult:
    """In this process. Seeds that are mutated more than once come from earlier inputs."""
    law = law or TARGETS[target]()
    chance, pool, begun_at = random.Random(f"{target}/{seed}"), list(SEEDS[target]), time.monotonic()
    before = signal.signal(signal.SIGALRM, _hangs)
    try:
        for number in range(num_inputs):
            data = mutated(chance.choice(pool), chance, pool)
            if number % 50 == 0 and len(data) < 4096:
                pool.append(data)
            if failure := _failure(law, data):
                _keep(target, data)
                return TargetResult(target, number + 1, time.monotonic() - begun_at, failure)
    finally:
        signal.signal(signal.SIGALRM, before)
    return TargetResult(target, num_inputs, time.monotonic() - begun_at, "")


def _failure(law: Callable[[bytes], None], data: bytes) -> str:
    """What an input does that it must not; empty: nothing."""
    try:
        signal.setitimer(signal.ITIMER_REAL, HANGS_S)
        law(data)
    except Exception as error:  # which one it is says what was broken
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > LEAKS_MIB * 1024:
        return f"more than {LEAKS_MIB} MiB"
    return ""


def _hangs(*_: object) -> None:
    raise TimeoutError(f"more than {HANGS_S} s")


def by_coverage(target: str, num_inputs: int, seed: int) -> TargetResult:
    """In a process of its own, which libFuzzer drives."""
    with TemporaryDirectory() as folder:
        corpus, words, artifact = Path(folder, "corpus"), Path(folder, "words"), Path(folder, "input")
        corpus.mkdir()
        for number, data in enumerate(SEEDS[target]):
            (corpus / str(number)).write_bytes(data)
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS))
        options = [
            f"-runs={num_inputs}",
            f"-seed={seed}",
            f"-dict={words}",
            f"-timeout={HANGS_S}",
            "-max_len=4096",
        ]
        options += [f"-rss_limit_mb={LEAKS_MIB}", f"-exact_artifact_path={artifact}", str(corpus)]
        begun_at = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.fuzz.coverage_guided", target, *options]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace")
        took_s, output = time.monotonic() - begun_at, ended.stdout + ended.stderr
        done, covered = _DONE.search(output), _COVERAGE.findall(output)
        if ended.returncode and artifact.exists():
            _keep(target, artifact.read_bytes())
        failure = "" if ended.returncode == 0 and done else output[-2000:]
        return TargetResult(
            target, int(done[1]) if done else 0, took_s, failure, int(covered[-1]) if covered else None
        )


def _escaped(word: bytes) -> str:
    """As libFuzzer's dictionaries have it."""
    return "".join(f"\\x{byte:02x}" for byte in word)


def _keep(target: str, data: bytes) -> None:
    RAW.mkdir(exist_ok=True)
    (RAW / f"{target}.bin").write_bytes(data)


def table(results: list[TargetResult], is_guided: bool) -> str:
    num_inputs, num_failed = sum(r.num_inputs for r in results), sum(bool(r.failure) for r in results)
    how = "Guided by coverage (atheris)" if is_guided else "By chance"
    lines = [
        f"{how}. {num_inputs:,} inputs, {num_failed} failures; a hang is {HANGS_S} s, a leak {LEAKS_MIB} MiB.",
        "",
        "| target | inputs | per second | edges | failure |",
        "|---|---:|---:|---:|---|",
    ]
    for r in results:
        rate, edges = r.num_inputs / r.took_s, "" if r.coverage is None else r.coverage
        failure = r.failure.strip().splitlines()[-1][:80] if r.failure else ""
        lines.append(f"| {r.target} | {r.num_inputs:,} | {rate:,.0f} | {edges} | {failure} |")
    return "\n".join(lines)


def main() -> int:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in total (%(default)s)")
    parser.add_argument("--target", choices=TARGETS, help="only this one, with all inputs; prints only")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--by-chance", action="store_true", help="although atheris is installed: far quicker")
    options = parser.parse_args()
    is_guided = find_spec("atheris") is not None and not options.by_chance
    fuzz = by_coverage if is_guided else by_chance
    shares = {options.target: 100} if options.target else SHARES
    results = []
    for target, share in shares.items():
        results.append(fuzz(target, options.inputs * share // 100, options.seed))
        print(f"{target}: {results[-1].num_inputs} inputs. {results[-1].failure}", flush=True)
    text = table(results, is_guided)
    print(text)
    write(None if options.target else options.results, "fuzz", text, results)
    return 1 if any(r.failure for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
