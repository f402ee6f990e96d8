"""docs/faults.md is what the tests say."""

from __future__ import annotations

from tests.path.fault_table import DOCUMENT, collected, text


def test_the_document_has_every_row_of_the_tests_and_no_other() -> None:
    """If not, run: python -m tests.path.fault_table"""
    assert DOCUMENT.read_text(encoding="utf-8") == text(collected())
