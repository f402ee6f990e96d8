from __future__ import annotations

import pytest

from tool_runtime.define import parameters_of, summary_of

GOOGLE = """Find rows.

    Fast.

    Args:
        table (str): its name
        limit: how many,
            at most

            of all
        **more: the rest

    Raises:
        KeyError: no table
    """
NUMPY = """Find rows.

    Fast.

    Parameters
    ----------
    table : str
        its name
    limit
        how many,
        at most

        of all

    Returns
    -------
    list
        rows
    """
SPHINX = """Find rows.

    Fast.

    :param str table: its name
    :param limit: how many,
        at most
        of all
    :type limit: int
    :returns: rows
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style_says_the_same(text: str) -> None:
    assert parameters_of(text) == {"table": "its name", "limit": "how many, at most of all"}
    assert summary_of(text) == "Find rows.\n\nFast."


@pytest.mark.parametrize("text", ["", "Find rows: fast.", "Find.\n\nUse it: well.\nArgs are few."])
def test_prose_is_summary(text: str) -> None:
    assert parameters_of(text) == {}
    assert summary_of(text) == text
