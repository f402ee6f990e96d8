"""Laws of the language: plain subjects, the field's words, and methods and variables that say what they hold."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_tree import PRODUCT, ROOT, files, tree

DOCUMENTS = [
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "benchmarks/README.md", "deploy/Dockerfile")),
    *(ROOT / "deploy").rglob("*.yaml"),
    *(ROOT / "deploy").rglob("*.tpl"),
]
PEOPLE = ("people", "person", "operator", "operators", "user", "users", "anyone", "those", "engineer", "engineers")
VERBS = (
    *("is", "was", "are", "were", "has", "have", "had", "may", "can", "will", "does", "do", "did", "came"),
    *("waits?", "comes?", "goes", "go", "asks?", "holds?", "leaves?", "gives?", "takes?", "wants?", "needs?"),
    *("knows?", "sends?", "gets?", "got"),
)
PATTERNS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(nobody|somebody|anybody|everybody|whoever|whosoever|whomever|whom|anew)\b",
        r"\b(let|lets|letting) (it |them |one |him )?in\b",
        r"\bours\b|\btheirs\b",
        "".join(rf"(?<!{noun} )" for noun in PEOPLE) + rf"\bwho ({'|'.join(VERBS)})\b",
        r"\bwhat (is|was) (ours|its own|not|to come|known)\b|\bwhat (we|nobody|comes|came|goes|it) ",
        r"\b(has|have|had) to itself\b|\b(is|are|was|be) told\b",
    )
]
"""A request, a session and a replica are "it"; a sentence begins with its subject."""

BROAD_METHODS = ("start", "begin", "add", "take", "tell", "own", "asked", "told")
"""Verbs without an object: on many classes a reader does not find the one that is meant."""
MOST_CLASSES_PER_BROAD_METHOD = 3
VAGUE_NAMES = re.compile(r"^_?(told|asked|who|anew|whom|nobody|somebody)(_|$)|_(told|asked|who)$")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a document; of a Python file those of its comments and strings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), token.start[0])


def broken(paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {found[0]!r} in {line.strip()!r}"
        for path in paths
        for number, line in prose(path)
        for pattern in PATTERNS
        if (found := pattern.search(line))
    ]


def test_documents_have_plain_subjects() -> None:
    assert broken(DOCUMENTS) == []


@pytest.mark.parametrize("package", PRODUCT)
def test_docstrings_help_and_errors_have_plain_subjects(package: str) -> None:
    assert broken([path for module, path in files().items() if module.partition(".")[0] == package]) == []


@pytest.mark.parametrize("package", PRODUCT)
def test_a_broad_verb_is_a_method_of_few_classes(package: str) -> None:
    owners: dict[str, list[str]] = defaultdict(list)
    for module in (name for name in files() if name.partition(".")[0] == package):
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef):
                methods = {
                    item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                }
                for method in methods.intersection(BROAD_METHODS):
                    if method != "start" or "stop" not in methods:
                        owners[method].append(f"{module}.{node.name}")
    assert {name: at for name, at in owners.items() if len(at) > MOST_CLASSES_PER_BROAD_METHOD} == {}


@pytest.mark.parametrize("package", PRODUCT)
def test_variables_are_nouns(package: str) -> None:
    vague = set()
    for module in (name for name in files() if name.partition(".")[0] == package):
        for node in ast.walk(tree(module)):
            match node:
                case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                    vague |= {f"{module}: {name}"} if VAGUE_NAMES.search(name) else set()
    assert vague == set()
