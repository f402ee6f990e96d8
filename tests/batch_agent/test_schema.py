from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent.results import OutputValidationError
from batch_agent.schema import OutputSchema, output_of


class Bug(BaseModel):
    line: int
    text: str


PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    "text",
    [
        '{"line": 1, "text": "t"}',
        'Here it is:\n```json\n{"line": 1, "text": "t"}\n```\nDone.',
        '  {"line": "1", "text": "t"}',
    ],
)
def test_the_object_in_an_answer_is_read_as_the_model(text: str) -> None:
    assert OutputSchema(Bug).read(text) == Bug(line=1, text="t")


def test_a_json_schema_gives_a_dict_that_was_checked() -> None:
    schema = OutputSchema(PLAIN)
    assert schema.read('{"a": 1}') == {"a": 1}
    with pytest.raises(OutputValidationError, match="'a' is a required property"):
        schema.read("{}")


@pytest.mark.parametrize(
    ("text", "fault"),
    [("none", "no JSON object"), ('{"line": 1,}', "not valid JSON"), ('{"line": 1}', "text: Field required")],
)
def test_a_fault_is_told_in_words_that_the_model_can_act_on(text: str, fault: str) -> None:
    with pytest.raises(OutputValidationError, match=fault):
        OutputSchema(Bug).read(text)


def test_repair_takes_closing_commas_away() -> None:
    assert OutputSchema(Bug).read('{"line": 1, "text": "t",\n}', repair=True) == Bug(line=1, text="t")


def test_anything_else_is_no_schema() -> None:
    with pytest.raises(TypeError, match="output_schema must be"):
        OutputSchema("Bug")  # type: ignore[arg-type]


class Author:
    """Who wrote the answer, and what it answers when told that it was wrong."""

    def __init__(self, correction: str | None) -> None:
        self.correction = correction
        self.faults: list[str] = []

    async def correct(self, fault: str) -> str | None:
        self.faults.append(fault)
        return self.correction

    async def output(self, text: str) -> Any:
        return await output_of(OutputSchema(PLAIN), text, self.correct)


async def test_an_output_that_fits_is_not_talked_about() -> None:
    author = Author(None)
    assert await author.output('{"a": 1}') == {"a": 1}
    assert author.faults == []


async def test_the_author_reads_the_fault_once() -> None:
    author = Author('{"a": 2}')
    assert await author.output('{"b": 1}') == {"a": 2}
    assert len(author.faults) == 1
    assert "'a' is a required property" in author.faults[0]


@pytest.mark.parametrize("correction", ['{"a": 2,}', "I cannot.", None])
async def test_repair_comes_last_and_prefers_the_correction(correction: str | None) -> None:
    expected = 2 if correction and "2" in correction else 1
    assert await Author(correction).output('{"a": 1,}') == {"a": expected}


async def test_what_cannot_be_repaired_is_an_error() -> None:
    with pytest.raises(OutputValidationError):
        await Author("no").output("no")
