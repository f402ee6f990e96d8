"""The law of the record of a request: each field has one writer, and the outcome is set in one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from gateway.exchange import Exchange, RequestEnd, Timings

GATEWAY = Path(__file__).parent.parent / "gateway"
RECORDS = ("exchange", "_exchange")
"""Names under which stages hold the record."""
VALUES = ("payload", "caller", "recognition", "attempt", "end")
"""Parts of the record that are replaced in whole, never changed."""


def assigned(tree: ast.AST) -> Iterator[str]:
    """Dotted paths below the record that a file assigns, such as `end` and `timings.leased_at`."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for each in ast.walk(target) if isinstance(target, ast.AST) else ():
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    record, _, path = ast.unparse(each).partition(".")
                    if record == "self":
                        record, _, path = path.partition(".")
                    if record in RECORDS and path:
                        yield path


def methods_assign() -> Iterator[str]:
    """Fields that the record's own methods assign."""
    tree = ast.parse((GATEWAY / "exchange.py").read_text(encoding="utf-8"))
    (record,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == Exchange.__name__)
    for node in ast.walk(record):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def writers() -> dict[str, set[str]]:
    found = defaultdict(set)
    for path in GATEWAY.rglob("*.py"):
        for field in assigned(ast.parse(path.read_text(encoding="utf-8"))):
            found[field].add(path.relative_to(GATEWAY).as_posix())
    for field in methods_assign():
        found[field].add("exchange.py")
    return found


def test_no_field_of_the_record_is_assigned_in_two_files() -> None:
    assert {field: files for field, files in writers().items() if len(files) > 1} == {}


def test_the_writers_are_found() -> None:
    found = writers()
    known = {*Exchange.__slots__, *(f"timings.{name}" for name in Timings.__slots__)}
    known |= {"reply.is_complete", "reply.num_other_chars"}
    assert found.keys() <= known
    assert {"payload", "caller", "recognition", "attempt", "end", "timings.leased_at"} <= found.keys()


def test_the_outcome_is_set_in_one_place() -> None:
    made = [
        (path.relative_to(GATEWAY).as_posix(), ast.unparse(node))
        for path in GATEWAY.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == RequestEnd.__name__
    ]
    assert [file for file, _ in made] == ["request/handler.py"]


def test_parts_are_replaced_in_whole() -> None:
    changed = [field for field in writers() if field.partition(".")[0] in VALUES and "." in field]
    assert changed == []
