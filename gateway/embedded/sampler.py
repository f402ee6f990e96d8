"""Values that keep to a JSON schema, and texts that keep to a pattern: what an engine with a grammar would sample.

Each is a function of the schema and a seed. A schema that the sampler cannot keep to is refused, never ignored.
"""

from __future__ import annotations

import importlib
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator

from gateway.core.fields import Json, excerpt

Schema: TypeAlias = Json | bool

MOST_VALUES = 4_096
"""Values in one sample, objects and lists included."""
MOST_CHARS = 65_536
"""Characters of one text."""
DEEPEST = 48
"""Objects and lists within each other, and references that lead to references."""
_SHALLOW = 4
"""Above this depth optional members are drawn; below it the smallest value is taken, so that recursion ends."""
_TRIES = 64

WORDS = tuple(vowel.join(pair) for vowel in "aeiou" for pair in ("bd", "dn", "fr", "gl", "km", "lp", "rt", "st"))
"""Words of three letters: each is one token with its space."""

_UNSERVED = (
    *("not", "if", "dependentSchemas", "dependentRequired", "contains", "patternProperties", "propertyNames"),
    *("$dynamicRef", "$recursiveRef", "unevaluatedItems"),
)
"""Keywords that limit values in a way that is not walked. A value that keeps to them by chance is served."""


class SchemaNotServed(ValueError):
    """The sampler cannot keep to a schema or a pattern."""


def sampled(schema: Any, seed: int) -> Any:
    """Return a JSON value that keeps to a schema. Raises SchemaNotServed."""
    walk = _Walk(schema, random.Random(seed))  # noqa: S311 - text, not secrets
    for _ in range(8):
        try:
            value = walk.value(schema, 0)
        except SchemaNotServed:
            raise
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            # A client's schema may hold anything in any place.
            raise SchemaNotServed("the schema is no valid JSON schema") from None
        if _keeps_to(value, schema):
            return value
    unserved = [key for key in _UNSERVED if key in walk.keywords]
    because = f": it uses {', '.join(unserved)}" if unserved else ""
    raise SchemaNotServed(f"no value that keeps to the schema was found{because}")


def _keeps_to(value: Any, schema: Any) -> bool:
    try:
        return bool(Draft202012Validator(schema).is_valid(value))
    except Exception:
        # The library raises what its parts raise: re.error, unresolvable references, KeyError.
        raise SchemaNotServed("the schema is no valid JSON schema") from None


def words(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=num_words))


class _Walk:
    """One way through a schema."""

    def __init__(self, root: Any, rng: random.Random) -> None:
        self._root = root
        self._rng = rng
        self._num_values = 0
        self.keywords: set[str] = set()
        """All that were met."""

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict):
            if schema is not True:
                raise SchemaNotServed("a part of the schema is false: no value keeps to it")
            schema = {}
        self._num_values += 1
        if self._num_values > MOST_VALUES or depth > DEEPEST:
            raise SchemaNotServed(f"the schema asks for more than {MOST_VALUES} values, or for endless depth")
        schema = self._resolved(schema, depth)
        self.keywords.update(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(self._allowed(schema))
        kind = self._kind(schema, depth)
        makers: dict[Any, Callable[[Json, int], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._number,
            "number": self._number,
            "boolean": lambda *_: self._rng.random() < 0.5,
            "null": lambda *_: None,
        }
        maker = makers.get(kind)
        if maker is None:
            raise SchemaNotServed(f"the type {excerpt(str(kind))!r} is unknown")
        return maker(schema | {"type": kind}, depth)

    # ---- one schema without references and choices

    def _resolved(self, schema: Json, depth: int) -> Json:
        for _ in range(DEEPEST):
            if "$ref" in schema:
                rest = {key: value for key, value in schema.items() if key != "$ref"}
                schema = merged(self._target(schema["$ref"]), rest)
            elif "allOf" in schema:
                parts = schema["allOf"]
                schema = {key: value for key, value in schema.items() if key != "allOf"}
                for part in parts:
                    schema = merged(schema, part)
            elif choice := next((key for key in ("anyOf", "oneOf") if key in schema), None):
                rest = {key: value for key, value in schema.items() if key != choice}
                schema = merged(self._branch(schema[choice], depth), rest)
            else:
                return schema
        raise SchemaNotServed("references of the schema lead to references without an end")

    def _target(self, reference: Any) -> Schema:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaNotServed(f"$ref {excerpt(str(reference))!r} does not begin with #: others are not loaded")
        at = self._root
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                at = at[int(step)] if isinstance(at, list) else at[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise SchemaNotServed(f"$ref {excerpt(reference)!r} leads nowhere") from None
        if not isinstance(at, dict | bool):
            raise SchemaNotServed(f"$ref {excerpt(reference)!r} leads to no schema")
        return at

    def _branch(self, branches: list[Any], depth: int) -> Schema:
        usable = [branch for branch in branches if branch is not False]
        if not usable:
            raise SchemaNotServed("a choice of the schema has no branch")
        if depth < _SHALLOW:
            return self._rng.choice(usable)  # type: ignore[no-any-return]
        return min(usable, key=_size)  # type: ignore[no-any-return]

    def _allowed(self, schema: Json) -> list[Any]:
        rest = {key: value for key, value in schema.items() if key in ("type", "pattern", "minimum", "maximum")}
        values = [value for value in schema["enum"] if _keeps_to(value, rest)]
        if not values:
            raise SchemaNotServed("an enum of the schema has no value of its type")
        return values

    def _kind(self, schema: Json, depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            return "null" if depth >= _SHALLOW and "null" in kind else self._rng.choice(kind)
        return kind or next((kind for key, kind in _KIND_OF_KEYWORD.items() if key in schema), "string")

    # ---- one value of a type

    def _object(self, schema: Json, depth: int) -> Json:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", MOST_VALUES)
        more = schema.get("additionalProperties", True)
        missing = [name for name in schema.get("required", ()) if name not in properties]
        optional = [name for name in properties if name not in required and properties[name] is not False]
        num_wanted = max(0, least - len(required))
        chance = 0.5 if depth < _SHALLOW else 0.0
        drawn = [name for name in optional if self._rng.random() < chance]
        drawn += [name for name in optional if name not in drawn][: max(0, num_wanted - len(drawn))]
        chosen = required | set(drawn[: max(0, most - len(required))])
        made = {name: self.value(part, depth + 1) for name, part in properties.items() if name in chosen}
        made |= {name: self.value(more, depth + 1) for name in missing}
        num_more = self._rng.randint(1, 2) if not properties and isinstance(more, dict) and depth < _SHALLOW else 0
        while len(made) < min(most, max(least, len(made) if properties else num_more)):
            made[f"{self._rng.choice(WORDS)}{len(made) if made else ''}"] = self.value(more, depth + 1)
        return made

    def _array(self, schema: Json, depth: int) -> list[Any]:
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        least = schema.get("minItems", 0)
        usual = max(least, len(first), self._rng.randint(1, 3) if depth < _SHALLOW else 0)
        length = max(least, min(usual, schema.get("maxItems", MOST_VALUES)))
        if rest is False:
            length = max(least, min(length, len(first)))
        made: list[Any] = []
        for index in range(length):
            part = first[index] if index < len(first) else rest
            value = self.value(part, depth + 1)
            if schema.get("uniqueItems") is True:
                value = self._unlike(made, value, part, depth + 1)
                if value is _NONE_LEFT:
                    if len(made) < least:
                        raise SchemaNotServed("a list of the schema asks for more different values than there are")
                    break
            made.append(value)
        return made

    def _unlike(self, made: list[Any], value: Any, part: Any, depth: int) -> Any:
        for _ in range(_TRIES):
            if value not in made:
                return value
            value = self.value(part, depth)
        return _NONE_LEFT

    def _string(self, schema: Json, depth: int) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", MOST_CHARS)
        if least > min(most, MOST_CHARS):
            raise SchemaNotServed(f"a text of the schema is longer than {MOST_CHARS}, or than its own maxLength")
        if (pattern := schema.get("pattern")) is not None:
            return text_of_pattern(pattern, self._rng, least, most)
        made = _FORMATS.get(schema.get("format", ""), _plain)(self._rng)
        if schema.get("format") in _FORMATS:
            if not least <= len(made) <= most:
                raise SchemaNotServed(f"a text of format {schema['format']!r} has {len(made)} characters")
            return made
        while len(made) < least:
            made += f" {self._rng.choice(WORDS)}"
        made = made[:most] if len(made) > most else made
        return made if made.strip() == made else made[:-1] + "a"

    def _number(self, schema: Json, depth: int) -> int | float:
        step = schema.get("multipleOf")
        is_whole = schema["type"] == "integer"
        low, high = _bounds(schema)
        if step is None:
            step = 1 if is_whole or high - low >= 4 else (high - low) / 4
            if not is_whole and (not step or not math.ceil(low / step) * step <= high):
                step = (high - low) / 4 or 1
        if is_whole:
            step = _whole_step(step)
        first, last = math.ceil(low / step), math.floor(high / step)
        exclusive = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        first += exclusive[0] is not None and first * step <= exclusive[0]
        last -= exclusive[1] is not None and last * step >= exclusive[1]
        if first > last:
            if low == high and not is_whole and exclusive == (None, None) and "multipleOf" not in schema:
                return low
            raise SchemaNotServed("no number lies between the bounds of the schema")
        made = self._rng.randint(first, last) * step
        return int(made) if is_whole else made


_NONE_LEFT = object()
_KIND_OF_KEYWORD = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "minProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "uniqueItems"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength", "format"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}
"""The type that a schema without one means, by its keywords."""


def _size(schema: Any) -> int:
    """Return how much a branch asks for, as far as it says so itself: plain values, then lists, objects and
    references."""
    if not isinstance(schema, dict):
        return 0
    kind = schema.get("type")
    if "const" in schema or "enum" in schema or kind in ("null", "boolean", "string", "integer", "number"):
        return 0
    if kind == "array" and not schema.get("minItems"):
        return 1
    return 3 if "$ref" in schema or "anyOf" in schema else 2


def _bounds(schema: Json) -> tuple[float, float]:
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if schema.get(key) is not None]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if schema.get(key) is not None]
    low = max(lows) if lows else (min(0, min(highs) - 100) if highs else 0)
    high = min(highs) if highs else max(100, low + 100)
    step = schema.get("multipleOf") or 0
    return low, high if highs else max(high, low + 2 * step)


def _whole_step(step: float) -> int:
    """Return the smallest whole number that is a multiple of a step."""
    for times in range(1, 1_001):
        if float(step * times).is_integer() and step > 0:
            return int(step * times)
    raise SchemaNotServed("multipleOf of the schema has no whole multiple")


# ---- two schemas at once

_BOTH: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "enum": lambda one, other: [value for value in one if value in other],
    "uniqueItems": lambda one, other: one or other,
    "allOf": lambda one, other: [*one, *other],
    "items": lambda one, other: merged(one, other),
    "properties": lambda one, other: {
        **one,
        **{name: merged(one[name], part) if name in one else part for name, part in other.items()},
    },
    "additionalProperties": lambda one, other: merged(one, other),
}
_ANNOTATIONS = (
    "title",
    "description",
    "default",
    "examples",
    "$defs",
    "definitions",
    "$id",
    "$schema",
    "$comment",
)


def merged(one: Any, other: Any) -> Json:
    """Return a schema whose values keep to both. Raises SchemaNotServed where that is not simple."""
    if one is False or other is False:
        raise SchemaNotServed("a part of the schema is false: no value keeps to it")
    if not isinstance(one, dict) or not isinstance(other, dict):
        return dict(one if isinstance(one, dict) else other if isinstance(other, dict) else {})
    made = dict(one)
    for key, value in other.items():
        if key not in made or key in _ANNOTATIONS or made[key] == value:
            made[key] = value
        elif key == "type":
            made[key] = _type_of_both(made[key], value)
        elif key in _BOTH:
            made[key] = _BOTH[key](made[key], value)
        elif key in ("anyOf", "oneOf"):
            made["allOf"] = [*made.get("allOf", []), {key: value}]
        else:
            raise SchemaNotServed(f"two parts of the schema that must both hold differ in {excerpt(key)!r}")
    return made


def _type_of_both(one: Any, other: Any) -> Any:
    ones, others = ([kind] if isinstance(kind, str) else kind for kind in (one, other))
    both = [kind for kind in ones if kind in others]
    if not both and {"integer", "number"} <= {*ones, *others}:
        both = ["integer"]
    if not both:
        raise SchemaNotServed("two parts of the schema that must both hold have different types")
    return both[0] if len(both) == 1 else both


# ---- texts

_Maker: TypeAlias = Callable[[random.Random], str]


def _plain(rng: random.Random) -> str:
    return words(rng, rng.randint(1, 4))


def _date(rng: random.Random) -> str:
    return f"20{rng.randint(20, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _time(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}Z"


def _uuid(rng: random.Random) -> str:
    digits = f"{rng.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


_FORMATS: Mapping[str, _Maker] = {
    "date-time": lambda rng: f"{_date(rng)}T{_time(rng)}",
    "date": _date,
    "time": _time,
    "duration": lambda rng: f"PT{rng.randint(1, 59)}M",
    "email": lambda rng: f"{rng.choice(WORDS)}@example.com",
    "hostname": lambda rng: f"{rng.choice(WORDS)}.example.com",
    "ipv4": lambda rng: f"192.0.2.{rng.randint(1, 254)}",
    "ipv6": lambda rng: f"2001:db8::{rng.randint(1, 9999)}",
    "uri": lambda rng: f"https://example.com/{rng.choice(WORDS)}",
    "uuid": _uuid,
}


def text_of_pattern(pattern: Any, rng: random.Random, least: int = 0, most: int = MOST_CHARS) -> str:
    """Return a text of `least` to `most` characters in which a pattern is found. Raises SchemaNotServed for a
    pattern beyond literals, classes, groups, alternatives and repeats, which look-around and back references are.
    """
    try:
        parsed, compiled = _PARSER.parse(pattern), re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError):
        raise SchemaNotServed(f"the pattern {excerpt(str(pattern))!r} cannot be read") from None
    for attempt in range(_TRIES):
        # Most repeats are short; where the text has to be long, later attempts repeat more.
        most_repeats = 3 + (least if attempt % 2 else attempt)
        made = "".join(_pieces(parsed, rng, most_repeats))
        if len(made) < least and not pattern.endswith("$"):
            made += rng.choice(WORDS) * (least - len(made))
            made = made[: max(least, 1)]
        if least <= len(made) <= most and compiled.search(made):
            return made
    raise SchemaNotServed(f"no text of a fitting length was found for the pattern {excerpt(pattern)!r}")


_PARSER: Any = importlib.import_module("re._parser")
"""The parser of `re`, which has no public name since Python 3.11."""
_ALPHABET = "".join(map(chr, range(32, 127)))
_CLASSES = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda char: not char.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda char: not char.isspace(),
    "CATEGORY_WORD": lambda char: char.isalnum() or char == "_",
    "CATEGORY_NOT_WORD": lambda char: not (char.isalnum() or char == "_"),
}


def _pieces(parsed: Any, rng: random.Random, most_repeats: int) -> Iterator[str]:
    for code, argument in parsed:
        match str(code):
            case "LITERAL":
                yield chr(argument)
            case "NOT_LITERAL":
                yield rng.choice(_ALPHABET.replace(chr(argument), ""))
            case "ANY":
                yield rng.choice("abcdefghijklmnopqrstuvwxyz")
            case "IN":
                yield _one_of(argument, rng)
            case "BRANCH":
                yield from _pieces(rng.choice(argument[1]), rng, most_repeats)
            case "SUBPATTERN":
                yield from _pieces(argument[-1], rng, most_repeats)
            case "ATOMIC_GROUP":
                yield from _pieces(argument, rng, most_repeats)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                low, high, repeated = argument
                if low > MOST_CHARS:
                    raise SchemaNotServed(f"a pattern repeats more than {MOST_CHARS} times")
                for _ in range(rng.randint(low, min(int(high), low + most_repeats))):
                    yield from _pieces(repeated, rng, most_repeats)
            case "AT":
                pass
            case other:
                raise SchemaNotServed(f"a pattern uses {other.lower()}, which is not served")


def _one_of(members: Any, rng: random.Random) -> str:
    """Return a character of a class. Of an open class it is a visible one where there is one."""
    is_negated = str(members[0][0]) == "NEGATE"
    tests: list[Callable[[str], bool]] = []
    listed = ""
    for code, argument in members[1:] if is_negated else members:
        match str(code):
            case "LITERAL":
                listed += chr(argument)
            case "RANGE":
                listed += "".join(map(chr, range(argument[0], min(argument[1], argument[0] + 255) + 1)))
            case "CATEGORY":
                tests.append(_CLASSES[str(argument)])
    open_class = [char for char in _ALPHABET if any(test(char) for test in tests)]
    if is_negated:
        open_class = [char for char in _ALPHABET if char not in listed and char not in open_class]
        listed = ""
    plain = [char for char in open_class if char.isalnum()] or open_class
    choices: list[str] = [*listed, *plain]
    if not choices:
        raise SchemaNotServed("a class of a pattern has no visible character")
    return rng.choice(choices)
