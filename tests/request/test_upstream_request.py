"""Laws of what is sent to an engine. The bytes and headers of whole calls: tests/path."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.request.upstream_request import end_to_end, merged


@pytest.mark.parametrize(
    ("ours", "client", "both"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"hints": {"osl": 9, "x": 1}}, {"hints": {"osl": 5}}, {"hints": {"osl": 5, "x": 1}}),
        ({"hints": {"osl": 9}}, {"hints": None}, {"hints": None}),
        ({"a": 1}, None, {"a": 1}),
        (-5, 7, -5),
    ],
)
def test_the_clients_own_keys_win_inside_an_object_and_ours_replaces_all_else(
    ours: Any, client: Any, both: Any
) -> None:
    assert merged(ours, client) == both


def test_headers_that_connection_names_stay_behind() -> None:
    sent = [("Connection", "close, X-Hop"), ("x-hop", "1"), ("TE", "trailers"), ("Accept", "*/*")]
    assert list(end_to_end(sent)) == [("Accept", "*/*")]
