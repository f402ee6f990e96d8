"""Laws of inputs out of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from batch_agent.inputs import read_inputs
from tests.batch_agent.conftest import Run
from tests.batch_agent.scripted import Scripted, says

BOM = "\ufeff"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.jsonl", '{"n": "1", "x": "a,b"}\n\n{"n": "2", "x": "c"}\n'),
        ("in.json", '[{"n": "1", "x": "a,b"}, {"n": "2", "x": "c"}]'),
        ("in.csv", 'n,x\n1,"a,b"\n2,c\n'),
        ("in.TSV", "n\tx\n1\ta,b\n2\tc\n"),
    ],
)
@pytest.mark.parametrize("mark", ["", BOM])
def test_a_file_gives_an_input_for_each_line_entry_or_row(name: str, text: str, mark: str) -> None:
    assert read_inputs(written(name, mark + text), "{n}") == [{"n": "1", "x": "a,b"}, {"n": "2", "x": "c"}]


def test_a_pattern_gives_an_input_for_each_file_with_its_text_where_the_task_asks_for_it() -> None:
    for name in ("src/b.py", "src/deep/a.py", "src/c.txt"):
        written(name, f"of {name}")
    assert read_inputs("src/**/*.py", "Review {file}") == [{"file": "src/b.py"}, {"file": "src/deep/a.py"}]
    assert read_inputs("src/c.txt", "Sum up:\n{text}") == [{"file": "src/c.txt", "text": "of src/c.txt"}]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("in.jsonl", '{"n": 1}\nno\n', "in.jsonl, line 2 is not JSON"),
        ("in.jsonl", "[1]\n", "in.jsonl, line 1 must be an object"),
        ("in.json", "{}", "in.json must hold a list"),
        ("in.csv", "a,b\n1\n", "in.csv, line 2 has another number of fields"),
        ("in.csv", "a,b\n", "in.csv has no inputs"),
        ("gone.csv", "", "gone.csv: No such file"),
        ("*.rs", "", r"no file matches \*\.rs"),
    ],
)
def test_a_file_that_gives_no_inputs_says_what_is_wrong_and_where(name: str, text: str, fault: str) -> None:
    if text:
        written(name, text)
    with pytest.raises(ValueError, match=f"inputs: {fault}"):
        read_inputs(name, "{n}")


async def test_the_keyword_takes_a_file_as_well_as_a_list(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: says(asked.task.upper())
    results = await run(task="hello {n}", inputs=Path(written("in.csv", "n\nann\nbob\n")))
    assert [result.output for result in results] == ["HELLO ANN", "HELLO BOB"]
