"""The table of all keys: help, a dump, `--help` and the documents follow from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from gateway.cli import serve
from gateway.config import loading
from gateway.config.settings import EngineEntry, KeyEntry, Price, Section, Settings, help_of
from gateway.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
KNOBS = re.compile(r"^\| `([a-z]+\.[a-z_]+)` \| `?([\w.]+)`? \|", re.MULTILINE)


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """All sections that a type holds, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
        for info in annotation.model_fields.values():
            yield from sections_in(info.annotation)
    for part in get_args(annotation):
        yield from sections_in(part)


@pytest.mark.parametrize("section", dict.fromkeys(sections_in(Settings)), ids=lambda section: section.__name__)
def test_each_key_of_each_section_and_entry_has_a_sentence_of_help(section: type[Section]) -> None:
    helps = help_of(section)
    parts = {name for name, info in section.model_fields.items() if list(sections_in(info.annotation))}
    for key in section.model_fields:
        if key in helps:
            assert helps[key].rstrip("]}")[-1] in '."})' or "Example:" in helps[key], f"{key}: {helps[key]}"
        else:
            assert key in parts, f"{section.__name__}.{key} has no help"
    assert section.__doc__
    assert section.__doc__.endswith(".")


@pytest.mark.parametrize("entry", [EngineEntry, KeyEntry, Price])
def test_a_dump_shows_the_keys_of_entries_with_their_help(entry: type[Section]) -> None:
    dumped = loading.dump(Settings())
    assert all(re.search(rf"^#  +{key}: \S", dumped, re.MULTILINE) for key in entry.model_fields)


def test_a_wrong_key_of_an_entry_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "turngate.yaml"
    file.write_text("prices: {'Qwen/*': {promt: 1}}\nkeys: [{key: env:K, limits: {token: 1}}]\n")
    with pytest.raises(ConfigError) as caught:
        loading.load(file=file, environ={})
    text = str(caught.value)
    assert "prices.Qwen/*.promt: no such key; did you mean prompt?" in text
    assert "keys.0.limits.token: no such key; did you mean tokens?" in text


def test_the_defaults_that_the_command_line_names_are_those_of_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = Settings()
    text = Path(serve.__file__).read_text()
    for flag, value in (
        ("--host", settings.listen.host),
        ("--port", settings.listen.port),
        ("--workers", settings.cluster.workers),
    ):
        assert re.search(rf'"{flag}".*\(default: {re.escape(str(value))}[;)]', text), flag


def test_the_defaults_that_the_knobs_of_scheduling_name_are_those_of_the_table() -> None:
    named = dict(KNOBS.findall((ROOT / "docs" / "scheduling.md").read_text()))
    assert {"policy.name", "policy.ceiling", "policy.hold_bound_s"} <= named.keys()
    for path, text in named.items():
        section, key = path.split(".")
        value = getattr(getattr(Settings(), section), key)
        shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        assert text == shown, path
