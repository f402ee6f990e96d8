"""An output schema: the constraint for the engine, and the way from an answer to an output."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import BaseModel, ValidationError

from batch_agent.results import OutputValidationError
from tool_runtime.types import Json

_CORRECTION = "This is not the required output: {fault}. Answer again, with nothing but the corrected JSON object."
_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_CLOSING_COMMA = re.compile(r",(\s*[}\]])")


class OutputSchema:
    """A pydantic model, or a JSON schema."""

    def __init__(self, given: type[BaseModel] | Json) -> None:
        """Raises TypeError for anything else, and ValueError for an invalid schema."""
        self._model = given if isinstance(given, type) and issubclass(given, BaseModel) else None
        if self._model is not None:
            self.json_schema: Json = self._model.model_json_schema()
        elif isinstance(given, dict):
            self.json_schema = _checked(given)
        else:
            raise TypeError(f"output_schema must be a pydantic model or a JSON schema, not {given!r}")
        name = _NAME.sub("_", str(self.json_schema.get("title") or "output"))[:64]
        self.response_format: Json = {
            "type": "json_schema",
            "json_schema": {"name": name, "schema": self.json_schema},
        }
        schema_text = orjson.dumps(self.json_schema, option=orjson.OPT_SORT_KEYS).decode()
        self.instruction = (
            f"Your final message must be one JSON object that fits this schema, and nothing else:\n{schema_text}"
        )

    def read(self, text: str, *, repair: bool = False) -> Any:
        """Return the output in an answer: its JSON object, from the first brace to the last.

        `repair`: remove commas before closing brackets, as a last resort. Raises OutputValidationError with the
        fault, in words that the model can act on.
        """
        begin, end = text.find("{"), text.rfind("}") + 1
        if begin < 0 or end <= begin:
            raise OutputValidationError("the answer holds no JSON object")
        found = text[begin:end]
        try:
            return self.validated(orjson.loads(_CLOSING_COMMA.sub(r"\1", found) if repair else found))
        except orjson.JSONDecodeError as error:
            raise OutputValidationError(f"the answer is not valid JSON: {error}") from None

    def validated(self, value: Any) -> Any:
        """Raises OutputValidationError."""
        if self._model is not None:
            try:
                return self._model.model_validate(value)
            except ValidationError as error:
                faults = error.errors(include_url=False, include_context=False)
                raise OutputValidationError("; ".join(map(_fault, faults))) from None
        if (wrong := best_match(Draft202012Validator(self.json_schema).iter_errors(value))) is not None:
            raise OutputValidationError(f"{wrong.json_path}: {wrong.message}")
        return value


def _checked(schema: Json) -> Json:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"output_schema is no JSON schema: {error.json_path}: {error.message}") from None
    return schema


def correction(fault: str) -> str:
    """Return the words in which an author reads what is wrong with its answer."""
    return _CORRECTION.format(fault=fault)


async def output_of(
    schema: OutputSchema | None, text: str, correct: Callable[[str], Awaitable[str | None]]
) -> Any:
    """Return the output in an answer. An answer that does not fit is corrected once by its author, then repaired.

    `correct` takes the fault, has the answer corrected (`correction`), and returns the new one. None: the author
    cannot be asked. Raises OutputValidationError.
    """
    if schema is None:
        return text
    try:
        return schema.read(text)
    except OutputValidationError as error:
        fault = error
    corrected = await correct(str(fault))
    for tried, repair in ((corrected, False), (corrected, True), (text, True)):
        try:
            return schema.read(tried or "", repair=repair)
        except OutputValidationError as error:
            fault = error if tried else fault
    raise fault


def _fault(fault: Any) -> str:
    return f"{'.'.join(map(str, fault['loc'])) or 'the object'}: {fault['msg']}"
