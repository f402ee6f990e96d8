"""The shape of the source, checked on its syntax: who may import whom, and how long functions may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "policies", "tool_runtime", "batch_agent", "benchmarks")
FILES = sorted(path for package in (*PACKAGES, "tests") for path in (ROOT / package).rglob("*.py"))

MAX_FUNCTION_LINES = 40
REASON = "Long because "
"""Opens the reason in the first line of the docstring of whatever is longer."""

OWN_IMPORTS = {
    "policies": {"policies"},
    "tool_runtime": {"tool_runtime"},
    "gateway": {"gateway", "policies", "tool_runtime"},
    "batch_agent": {"batch_agent", "tool_runtime", "gateway"},
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything that a file imports, wherever in the file; `from a import b` gives `a.b`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(package: str) -> list[Path]:
    return [path for path in FILES if path.is_relative_to(ROOT / package)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def importers(package: str, module: str) -> set[str]:
    """Files of a package that import a module or anything in it."""
    return {
        name_of(path)
        for path in files_of(package)
        if any(name == module or name.startswith(f"{module}.") for name in imports(path))
    }


@pytest.mark.parametrize("package", OWN_IMPORTS)
def test_our_packages_import_one_way(package: str) -> None:
    ours = {name.partition(".")[0] for path in files_of(package) for name in imports(path)} & {*PACKAGES, "tests"}
    assert ours <= OWN_IMPORTS[package]


def test_policies_use_the_standard_library_only() -> None:
    foreign = {name.partition(".")[0] for path in files_of("policies") for name in imports(path)}
    assert foreign - {"policies"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", ["time", "datetime", "asyncio", "threading", "os", "socket", "logging"])
def test_policies_have_no_clock_and_no_io(module: str) -> None:
    assert importers("policies", module) == set()


def test_policies_draw_random_numbers_only_from_a_generator_that_they_are_given() -> None:
    drawn = {name for path in files_of("policies") for name in imports(path) if name.split(".")[0] == "random"}
    uses = {
        node.attr
        for path in files_of("policies")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
    }
    assert drawn | {f"random.{name}" for name in uses} <= {"random", "random.Random"}


def test_only_the_transports_import_an_http_library() -> None:
    for library in ("aiohttp", "http", "urllib.request", "httptools", "multidict", "yarl"):
        assert {n for n in importers("gateway", library) if not n.startswith("gateway/transport/")} == set()


def test_nobody_but_one_file_of_batch_agent_knows_the_gateway() -> None:
    assert importers("batch_agent", "gateway") == {"batch_agent/environment.py"}


def test_running_tools_needs_no_library_of_a_single_tool() -> None:
    single = ("tool_runtime/tools/", "tool_runtime/mcp", "tool_runtime/web.py")
    for library in ("aiohttp", "http", "mcp", "sqlite3"):
        assert {name for name in importers("tool_runtime", library) if not name.startswith(single)} == set()


def test_tools_reach_the_network_through_one_file() -> None:
    assert importers("tool_runtime", "aiohttp") == {"tool_runtime/web.py"}


def test_only_the_configuration_reads_yaml_and_the_environment() -> None:
    def reads_environment(path: Path) -> bool:
        return any(
            isinstance(node, ast.Attribute)
            and node.attr in ("environ", "getenv")
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            for node in ast.walk(tree(path))
        )

    readers = {name_of(path) for package in OWN_IMPORTS for path in files_of(package) if reads_environment(path)}
    yaml_readers = importers("gateway", "yaml") | importers("gateway", "os.environ")
    assert readers | yaml_readers == {"gateway/config/loading.py", "batch_agent/environment.py"}


def test_the_command_line_imports_nothing_heavy_before_it_runs_a_command() -> None:
    at_import = {
        name.partition(".")[0]
        for node in tree(ROOT / "gateway/cli/main.py").body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert at_import <= set(sys.stdlib_module_names)


def test_what_only_some_gateways_need_is_not_loaded_by_all() -> None:
    """It was a fifth of the time to start, and of the memory of those who do without."""
    loads = "import sys, gateway.cli.serve, gateway.app, gateway.transport.aiohttp_server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", loads], cwd=ROOT, check=True, capture_output=True, text=True)
    needless = {
        "batches.service",
        "cluster.service",
        "tools.wiring",
        "embedded.server",
        "engines.kv_events",
    }
    needless = {f"gateway.{name}" for name in needless} | {"tool_runtime", "jsonschema", "sqlite3", "redis"}
    assert set(loaded.stdout.split()) & needless == set()


def test_a_function_fits_a_screen_or_says_why_not() -> None:
    functions = [
        (path, node)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [(p, f) for p, f in functions if lines_of(f) > MAX_FUNCTION_LINES and not gives_reason(f)]
    assert {f"{name_of(path)}:{f.name}": lines_of(f) for path, f in long} == {}


def test_a_module_opens_with_its_one_job() -> None:
    modules = [path for package in PACKAGES for path in files_of(package) if path.stat().st_size]
    assert [name_of(path) for path in modules if not ast.get_docstring(tree(path))] == []


def gives_reason(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return REASON.lower() in (ast.get_docstring(node) or "").partition("\n")[0].lower()


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1
