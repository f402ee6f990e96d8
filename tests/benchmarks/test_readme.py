"""The index of the benchmarks names each command that there is, and the order of the folders is kept."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
README = (BENCHMARKS / "README.md").read_text()
MODULES = sorted(BENCHMARKS.rglob("*.py"))
ORDER = README.partition("## Order of the folders")[2].partition("\n\n    ")[2].partition("\n\n")[0].split()
"""The top imports all others."""
TEXTS = [
    path
    for folder in ("benchmarks", "docs", "tests", "gateway", "policies", "tool_runtime", "batch_agent")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md")
]
TEXTS += [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile")]
COMMAND = re.compile(r"python -m (benchmarks(?:\.[a-z_]+)+)")


def module_of(path: Path) -> str:
    return (
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__").removesuffix(".__init__")
    )


def folder_of(path: Path) -> str:
    return path.relative_to(BENCHMARKS).parts[0]


def is_runnable(module: str) -> bool:
    spec = find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{module}.__main__")
    return spec is not None and spec.origin is not None and "__main__" in Path(spec.origin).read_text()


def commands_of(path: Path) -> set[str]:
    return {f"python -m {module_of(path)}", f"python {path.relative_to(ROOT)}"}


def test_each_command_of_the_benchmarks_is_in_the_index() -> None:
    runnable = [
        path for path in MODULES if re.search(r"^if __name__ == .__main__.:", path.read_text(), re.MULTILINE)
    ]
    assert len(runnable) > 20
    named = set(re.findall(r"python (?:-m )?benchmarks[./][a-z_./]+[a-z]", README))
    assert [path for path in runnable if not named & commands_of(path)] == []


def test_each_test_has_the_name_of_its_module() -> None:
    tests = ROOT / "tests" / "benchmarks"
    modules = {path.relative_to(BENCHMARKS).with_name(f"test_{path.stem.strip('_')}.py") for path in MODULES}
    assert {path.relative_to(tests) for path in tests.rglob("test_*.py")} - modules == {Path("test_readme.py")}


@pytest.mark.parametrize(
    "path",
    [path for path in TEXTS if COMMAND.search(path.read_text())],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_commands_of_benchmarks_that_a_text_names_can_be_run(path: Path) -> None:
    assert [module for module in COMMAND.findall(path.read_text()) if not is_runnable(module)] == []


def test_results_are_tables_and_data_and_the_index_links_to_each() -> None:
    results = [path for path in BENCHMARKS.glob("*/results/**/*") if path.is_file()]
    assert {path.suffix for path in results} == {".md", ".json"}
    links = {(BENCHMARKS / link).resolve() for link in re.findall(r"\]\(([^)]+)\)", README)}
    assert [link for link in links if not link.exists()] == []
    tables = {path for path in results if path.suffix == ".md"}
    assert {path for path in tables if not links & {path, path.parent}} == set()


def imported(path: Path) -> set[str]:
    """Folders of benchmarks that a file imports, or names in an import path."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"\bbenchmarks\.\w+(?:\.\w+)*:\w+", node.value))
    return {name.split(".")[1] for name in names if name.startswith("benchmarks.")}


def test_a_folder_imports_only_what_stands_below_it() -> None:
    folders = [name.removesuffix(".py") for name in ORDER]
    assert sorted(ORDER) == sorted({folder_of(path) for path in MODULES} - {"__init__.py"})
    for path in MODULES:
        if path.parent != BENCHMARKS:
            below = folders[folders.index(folder_of(path)) :]
            assert imported(path) <= set(below), path
