from __future__ import annotations

import gc
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches import input_file
from gateway.batches.input_file import Endpoint, Input, LineLimits, Rests, body_of, prefix_key, script_of
from gateway.core.pieces import PIECE_BYTES
from gateway.core.slices import Steps
from gateway.dialects import BY_PATH

URL = "/v1/chat/completions"
MAX_LINE_BYTES = 2_000
LIMITS = LineLimits(MAX_LINE_BYTES, 600)


def endpoint(url: str = URL) -> Endpoint:
    def wrong_model(name: str) -> str | None:
        return None if name in ("m", "m2") else f"no {name}"

    return Endpoint(url, BY_PATH[url].check, partial(script_of, BY_PATH[url]), wrong_model)


def asks(custom_id: str = "a", text: str = "hello", **changes: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": body} | changes


def read(tmp_path: Path, *rows: dict[str, Any] | bytes) -> Input:
    raw = [row if isinstance(row, bytes) else orjson.dumps(row) for row in rows]
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"\n".join(raw) + b"\n")
    return input_file.read(file, endpoint(), LIMITS)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in asks("b").items() if name != key}


def test_lines_know_where_they_stand_in_the_file(tmp_path: Path) -> None:
    rows = [asks("a"), asks("b", "x" * 300), asks("c")]
    found = read(tmp_path, rows[0], b"", rows[1], b"  ", rows[2])
    assert (found.faults, found.model) == ([], "m")
    assert [line.custom_id for line in found.lines] == ["a", "b", "c"]
    raw = (tmp_path / "in.jsonl").read_bytes()
    assert [orjson.loads(raw[x.offset : x.offset + x.size_bytes]) for x in found.lines] == rows


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    rows = [asks("a"), asks("b")]
    found = read(tmp_path, BOM_UTF8 + orjson.dumps(rows[0]), rows[1])
    assert found.faults == []
    raw = (tmp_path / "in.jsonl").read_bytes()
    assert [orjson.loads(raw[x.offset : x.offset + x.size_bytes]) for x in found.lines] == rows


@pytest.mark.parametrize(
    ("row", "code", "param"),
    [
        (b"{not json", "invalid_json_line", None),
        (b'["no", "object"]', "invalid_json_line", None),
        (without("custom_id"), "missing_required_parameter", "custom_id"),
        (without("method"), "missing_required_parameter", "method"),
        (without("url"), "missing_required_parameter", "url"),
        (without("body"), "missing_required_parameter", "body"),
        (asks("a"), "duplicate_custom_id", "custom_id"),
        (asks(7), "invalid_request", "custom_id"),  # type: ignore[arg-type]
        (asks(""), "invalid_request", "custom_id"),
        (asks("b", method="GET"), "invalid_method", "method"),
        (asks("b", url="/v1/embeddings"), "url_mismatch", "url"),
        (asks("b", body=[]), "invalid_request", "body"),
        (asks("b", body={"model": "m"}), "invalid_request", "body.messages"),
        (asks("b", body={"model": "m2", "messages": []}), "model_mismatch", "body.model"),
        (asks("b", "x" * MAX_LINE_BYTES), "invalid_request", None),
    ],
)
def test_what_is_wrong_with_a_line_is_told_with_its_number(
    tmp_path: Path, row: dict[str, Any] | bytes, code: str, param: str | None
) -> None:
    found = read(tmp_path, asks("a"), row, asks("z"))
    assert [(fault.code, fault.param, fault.line) for fault in found.faults] == [(code, param, 2)]


def test_every_wrong_line_is_reported(tmp_path: Path) -> None:
    found = read(tmp_path, b"{", asks("b", method="PUT"), asks("c"), asks("c"))
    assert [(fault.code, fault.line) for fault in found.faults] == [
        ("invalid_json_line", 1),
        ("invalid_method", 2),
        ("duplicate_custom_id", 4),
    ]


def test_a_model_that_no_engine_serves_is_reported_once(tmp_path: Path) -> None:
    body = {"model": "gone", "messages": []}
    found = read(tmp_path, asks("a", body=body), asks("b", body=body))
    assert [(fault.code, fault.line) for fault in found.faults] == [("model_not_found", 1)]


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    assert [fault.code for fault in read(tmp_path, b" ").faults] == ["empty_file"]


def test_too_many_lines_are_refused_before_all_are_read(tmp_path: Path) -> None:
    rows = [asks(str(n)) for n in range(input_file.MAX_LINES + 1)]
    found = read(tmp_path, *rows)
    assert ([fault.code for fault in found.faults], found.lines) == (["too_many_tasks"], [])


def test_a_line_has_as_many_values_as_a_request_may_have(tmp_path: Path) -> None:
    fits = asks("a", body={"model": "m", "messages": [{"role": "user", "content": []}] * 30})
    found = read(tmp_path, fits, asks("b", body=fits["body"] | {"stop": [[]] * 200}))
    assert [line.custom_id for line in found.lines] == ["a"]
    assert [(fault.code, fault.message, fault.line) for fault in found.faults] == [
        ("invalid_request", "This line has more than 600 values.", 2)
    ]


LARGE = LineLimits(2**24, 10**6)
FILES: dict[str, Callable[[], bytes]] = {
    "blank lines": lambda: b"\n" * 150_000 + orjson.dumps(asks()),
    "one text": lambda: orjson.dumps(asks(text="x" * 4_000_000)),
    "parts": lambda: orjson.dumps(asks(body=said([{"type": "text", "text": "x" * 20}] * 80_000))),
    "messages": lambda: orjson.dumps(
        asks(body={"model": "m", "messages": said("hi there" * 9)["messages"] * 40_000})
    ),
}


def said(content: object) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("name", FILES)
def test_no_step_of_a_file_reads_much_of_it_but_one_text(name: str, tmp_path: Path) -> None:
    """The event loop waits for a step, as C code keeps the interpreter's lock."""
    file = tmp_path / "in.jsonl"
    file.write_bytes(FILES[name]())
    num_steps = 0

    def step_done() -> None:
        nonlocal num_steps
        num_steps += 1

    found = input_file.read(file, endpoint(), LARGE, step_done)
    assert (len(found.lines), found.faults) == (1, [])
    assert num_steps >= file.stat().st_size / (2 * PIECE_BYTES)


@pytest.mark.parametrize("text", [b"a", b"\r", b'{"a', b" ", b"[1,", b'"a"'])
@pytest.mark.parametrize("num_bytes", [3_000_000, LARGE.num_bytes, LARGE.num_bytes + 1, 2 * LARGE.num_bytes])
def test_a_long_line_is_come_by_in_steps_and_only_an_object_is_parsed(
    text: bytes, num_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes((text * num_bytes)[:num_bytes] + b"\r\n" + orjson.dumps(asks()))
    parsed: list[bytes] = []
    real = input_file._parsed

    def noted(raw: bytes, most_values: int) -> Steps[Mapping[str, Any]]:
        parsed.append(raw)
        return real(raw, most_values)

    monkeypatch.setattr(input_file, "_parsed", noted)
    num_steps = 0

    def step_done() -> None:
        nonlocal num_steps
        num_steps += 1

    found = input_file.read(file, endpoint(), LARGE, step_done)
    assert num_steps > num_bytes / PIECE_BYTES
    assert [(line.custom_id, line.offset) for line in found.lines] == [("a", num_bytes + 2)]
    assert [fault.line for fault in found.faults] == [1]
    assert len(parsed) == 1 + (text.startswith(b"{") and num_bytes <= LARGE.num_bytes)


def test_a_large_line_is_read_as_a_small_one(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    keys = []
    for size in (10, 400_000):
        body = {
            "model": "m",
            "messages": said("x" * 70_000)["messages"] + said("y" * size)["messages"],
            "stream": True,
        }
        file.write_bytes(orjson.dumps(asks(body=body)))
        line = input_file.read(file, endpoint(), LARGE).lines[0]
        keys.append(line.group)
        del body["stream"]
        assert body_of(file.read_bytes()) == orjson.dumps(body)
    assert keys[0] == keys[1], "the first 64 KiB decide the place among other lines"


def test_a_line_of_more_keys_than_any_api_has_is_a_fault_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    line = orjson.dumps(asks(body=said("x")))
    for num, is_allowed in ((900, True), (1_100, False), (60_000, False)):
        file.write_bytes(line.replace(b'"body":{', b'"body":{' + b'"user":"a",' * num))
        found = input_file.read(file, endpoint(), LARGE)
        assert [fault.param for fault in found.faults] == ([] if is_allowed else ["body"])
        if is_allowed:
            body_of(file.read_bytes())


def test_a_large_line_that_is_nested_too_deep_is_a_fault_that_says_so(tmp_path: Path) -> None:
    schema: Any = {"type": "string", "enum": ["value"] * 50_000}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    file = tmp_path / "in.jsonl"
    file.write_bytes(orjson.dumps(asks(body=said("x") | {"tools": [tool]})))
    (fault,) = input_file.read(file, endpoint(), LARGE).faults
    assert fault.code == "invalid_request"
    assert "lies deeper than 32 levels (in body[" in fault.message


def test_a_large_line_is_freed_in_steps(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(orjson.dumps(asks(body=said([{"type": "text", "text": "x" * 20, "seen": [1]}] * 20_000))))
    alive = [0]

    def step_done() -> None:
        alive.append(sum(type(one) is list for one in gc.get_objects(0)))

    gc.collect()
    gc.disable()
    try:
        input_file.read(file, endpoint(), LARGE, step_done)
        step_done()
    finally:
        gc.enable()
    assert max(alive) > 20_000
    assert max(earlier - later for earlier, later in pairwise(alive)) < 5_000


def test_more_blank_lines_than_a_file_may_have_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"\n" * 10_000_000 + orjson.dumps(asks()))
    num_steps = 0

    def step_done() -> None:
        nonlocal num_steps
        num_steps += 1

    found = input_file.read(file, endpoint(), LARGE, step_done)
    assert [fault.message for fault in found.faults] == ["The batch has more than 200,000 lines."]
    assert num_steps <= 200_001


def test_a_body_keeps_its_bytes_but_the_fields_of_streams() -> None:
    body = b'{"model" : "m", "stream": true, "x": 1.50, "stream_options":{"a":[1]}}'
    assert body_of(b'{"custom_id":"a", "body": ' + body + b', "q":1}') == b'{"model" : "m", "x": 1.50}'


def test_of_a_key_that_is_there_twice_the_last_counts_as_in_the_check() -> None:
    assert body_of(b'{"body": {"model": "other"}, "custom_id": "a", "body": {"model": "m"}}') == b'{"model": "m"}'


@given(st.binary(max_size=4_000), st.lists(st.integers(1, 900), max_size=5))
def test_how_a_text_comes_in_pieces_does_not_change_its_key(text: bytes, sizes: list[int]) -> None:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    assert prefix_key(iter([*pieces, text[at:]])) == prefix_key(iter([text]))


@given(st.integers(1, 12), st.permutations(range(24)))
def test_texts_with_a_long_common_prefix_stand_side_by_side(num_groups: int, order: list[int]) -> None:
    texts = [bytes([65 + n % num_groups]) * 600 + str(n).encode() for n in order]
    ordered = [text[:1] for text in sorted(texts, key=lambda text: prefix_key(iter([text])))]
    changes = sum(a != b for a, b in pairwise(ordered))
    assert changes == len(set(ordered)) - 1


def test_what_is_told_of_a_wrong_line_does_not_repeat_all_of_it(tmp_path: Path) -> None:
    """Faults are stored with their batch, a thousand of them."""
    rows = [asks("a", method="m\n" * 600), asks("b", url="u" * 1_800), asks("c" * 400), asks("c" * 400)]
    found = read(tmp_path, *rows)
    assert [fault.code for fault in found.faults] == ["invalid_method", "url_mismatch", "duplicate_custom_id"]
    assert all(
        len(fault.message) <= input_file.MAX_FAULT_CHARS and "\n" not in fault.message for fault in found.faults
    )


def test_a_thread_that_reads_lines_rests_as_long_as_it_works(tmp_path: Path) -> None:
    """Beside it the event loop would wait for nearly all of its time."""
    worked_s, rested_s = 0.0, 0.0

    def work() -> float:
        nonlocal worked_s
        worked_s += 0.0005
        return worked_s

    def sleep(seconds: float) -> None:
        nonlocal rested_s
        rested_s += seconds

    file = tmp_path / "in.jsonl"
    file.write_bytes(b"".join(orjson.dumps(asks(f"{number}")) + b"\n" for number in range(400)))
    found = input_file.read(file, endpoint(), LIMITS, Rests(work, sleep))
    assert len(found.lines) == 400
    assert rested_s >= 0.75 * worked_s
