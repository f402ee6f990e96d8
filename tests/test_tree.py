"""Laws of the tree: folders in one strict order, no circles, and one class for a name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gateway.dialects import BY_PATH

ROOT = Path(__file__).parent.parent
PRODUCT = ("gateway", "policies", "tool_runtime", "batch_agent")

ORDER = (
    *("__main__", "cli", "reload", "app"),
    *("api", "cluster", "embedded", "batches", "prompt_lists"),
    *("request", "tools", "sessions"),
    *("telemetry", "exchange", "access", "config", "engines", "transport", "dialects", "core"),
)
"""Folders and loose modules of `gateway/` from top to bottom: each imports only what stands below it. The record
of a request stands below all that writes it. The configuration stands above the engines whose kinds it names."""
MOST_LOOSE_MODULES = 5


@cache
def files() -> dict[str, Path]:
    """Product files by dotted module name."""
    found = {}
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(files()[module].read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[str]:
    """Product modules that a module imports anywhere in its file, for type checking too."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files())
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in files():
                    yield full
                elif node.module in files():
                    yield node.module


def folder_of(module: str) -> str | None:
    """The part of `gateway` that a module belongs to; None for what is no part of it."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "gateway" and rest else None


def test_a_folder_imports_only_what_stands_below_it() -> None:
    rank = {name: index for index, name in enumerate(ORDER)}
    upwards = [
        f"{module} -> {imported}"
        for module in files()
        if (above := folder_of(module))
        for imported in imports(module)
        if (below := folder_of(imported)) and below != above and rank[below] < rank[above]
    ]
    assert upwards == []


def test_every_part_of_the_gateway_has_its_place_in_the_order() -> None:
    assert {folder for module in files() if (folder := folder_of(module))} == set(ORDER)


def test_few_modules_lie_loose_in_the_gateway() -> None:
    assert len(list((ROOT / "gateway").glob("*.py"))) <= MOST_LOOSE_MODULES


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: {name for name in imports(module) if name != module} for module in files()}
    while leaves := [module for module, imported in graph.items() if not imported]:
        for leaf in leaves:
            del graph[leaf]
        for imported in graph.values():
            imported.difference_update(leaves)
    assert graph == {}


@pytest.mark.parametrize("package", PRODUCT)
def test_a_class_name_means_one_class(package: str) -> None:
    counts = Counter(
        node.name
        for module in files()
        if module == package or module.startswith(f"{package}.")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef)
    )
    assert {name: count for name, count in counts.items() if count > 1} == {}


# ---- a wire format is known by what it says of itself

FORMAT_MODULES = {f"gateway.dialects.{name}" for name in ("chat", "messages", "responses")}
"""Nothing outside the folder imports these: the path asks `Dialect`."""
SPEAKERS = ("gateway.dialects", "gateway.engines", "gateway.embedded")
"""The formats, and those who serve paths: an engine kind says what it honours on which path."""


def names_a_dialect(node: ast.AST) -> bool:
    """Whether an expression is `<...>dialect.name`, the path of a format, or a collection with such a path."""
    match node:
        case ast.Attribute(attr="name", value=ast.Name(id=owner) | ast.Attribute(attr=owner)):
            return owner == "dialect"
        case ast.Constant(value=value):
            return value in BY_PATH
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return any(map(names_a_dialect, items))
    return False


def switches(module: ast.Module) -> Iterator[int]:
    """Lines of a module where the format decides by its name or path: comparisons, look-ups, matches."""
    constants = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign) and names_a_dialect(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def decides(node: ast.AST) -> bool:
        return names_a_dialect(node) or (isinstance(node, ast.Name) and node.id in constants)

    for node in ast.walk(module):
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(decides, (left, *others))):
                yield node.lineno
            case ast.Subscript(slice=key) if decides(key):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="get" | "startswith"), args=args) if any(map(decides, args)):
                yield node.lineno
            case ast.Match(subject=subject) if decides(subject):
                yield subject.lineno


@pytest.mark.parametrize(
    "text",
    [
        "x.dialect.name == 'chat'",
        "TABLE[dialect.name]",
        "TABLE.get(x.dialect.name, 1)",
        "path in ('/v1/messages', 'y')",
        "BY_PATH['/v1/responses']",
        "match dialect.name:\n    case 'chat':\n        pass",
        "PATH = '/v1/responses'\npath.startswith(PATH)",
    ],
)
def test_a_switch_on_a_dialect_is_seen(text: str) -> None:
    assert len(list(switches(ast.parse(text)))) == 1


def test_no_switch_on_a_dialect_stands_outside_its_folder() -> None:
    found = [
        f"{module}:{line}"
        for module in files()
        if module.startswith("gateway.") and not module.startswith(SPEAKERS)
        for line in switches(tree(module))
    ]
    assert found == []


def test_nothing_outside_their_folder_imports_the_conversational_formats() -> None:
    importers = [
        module
        for module in files()
        if not module.startswith("gateway.dialects") and FORMAT_MODULES.intersection(imports(module))
    ]
    assert importers == []


MIRRORED = {folder: Path("gateway") / folder for folder in ORDER if (ROOT / "gateway" / folder).is_dir()} | {
    folder: Path(folder) for folder in PRODUCT[1:]
}
"""Folders of tests, and the folders that they mirror."""
CONTRACTS = ("transport/test_server", "transport/test_upstream")
"""Suites of an interface of `core/transport.py`, which run over each transport."""


@pytest.mark.parametrize("folder", MIRRORED)
def test_a_test_is_found_by_the_name_of_its_module(folder: str) -> None:
    tests = ROOT / "tests" / folder
    strays = []
    for path in tests.rglob("test_*.py"):
        source = ROOT / MIRRORED[folder] / path.parent.relative_to(tests)
        modules = [entry.stem for entry in source.iterdir() if entry.suffix == ".py" or entry.is_dir()]
        subject = path.stem.removeprefix("test_")
        if not any(subject == name or subject.startswith(f"{name}_") for name in modules):
            strays.append(str(path.relative_to(ROOT / "tests")))
    assert [path for path in strays if not path.startswith(CONTRACTS)] == []
