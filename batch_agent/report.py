"""The report of a batch: results, failures, tokens, where the time went, and calls of tools that sharing saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from batch_agent.results import AgentResult, Usage, as_json, jsonable

FORMS = (".md", ".json")
_MOST_CHARS = 80
"""Of an output or an error in a row of the table."""


def refuse_other_form(file: Path) -> None:
    """Raises ValueError for a file that is neither Markdown nor JSON."""
    if file.suffix.lower() not in FORMS:
        raise ValueError(f"--report {file}: name a file that ends in .md or .json")


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Seconds of all agents together, which run at once: their sum is more than the time of the batch."""

    queued_s: float
    """Held back by the gateway."""
    model_s: float
    """In model calls, without that."""
    tools_s: float
    """In tools of the batch."""
    other_s: float
    """All else, such as pauses before a call was sent again."""


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a batch. `results` are in the order of the inputs."""

    results: Sequence[AgentResult]
    wall_s: float

    def write(self, file: Path) -> None:
        """Write Markdown or JSON, by the name of the file. Raises OSError."""
        text = self.as_markdown() if file.suffix.lower() == ".md" else self.as_json()
        file.write_text(text, encoding="utf-8")

    @property
    def failures(self) -> dict[str, list[AgentResult]]:
        """Results without an output by the type of their error."""
        by_type: dict[str, list[AgentResult]] = {}
        for result in self.results:
            if result.error is not None:
                by_type.setdefault(result.error.type, []).append(result)
        return by_type

    @property
    def usage(self) -> Usage:
        return sum((result.usage for result in self.results), Usage())

    @property
    def split(self) -> TimeSplit:
        times = [result.timings for result in self.results]
        total, model = sum(time.total_s for time in times), sum(time.model_s for time in times)
        queued, tools = sum(time.queued_s for time in times), sum(time.tools_s for time in times)
        queued = min(queued, model)  # the gateway counts on a clock of its own
        return TimeSplit(queued, model - queued, tools, max(0.0, total - model - tools))

    def figures(self) -> dict[str, Any]:
        """Return all but the results."""
        usage, results = self.usage, self.results
        return {
            "agents": len(results),
            "ok": sum(result.ok for result in results),
            "failed": {type_: len(failed) for type_, failed in self.failures.items()},
            "by_an_earlier_run": sum(result.ok and not result.attempts for result in results),
            "wall_s": round(self.wall_s, 3),
            "model_calls": sum(result.turns for result in results),
            "usage": asdict(usage),
            "cached_share": round(usage.cached_tokens / usage.prompt_tokens, 4) if usage.prompt_tokens else None,
            "time": {name: round(seconds, 3) for name, seconds in asdict(self.split).items()},
            "tool_calls": sum(result.tool_calls for result in results),
            "tool_calls_saved": sum(result.tool_calls_saved for result in results),
        }

    def as_json(self) -> str:
        whole = self.figures() | {"results": [as_json(result) for result in self.results]}
        return orjson.dumps(whole, default=str, option=orjson.OPT_INDENT_2).decode() + "\n"

    def as_markdown(self) -> str:
        found, usage = self.figures(), self.usage
        cached = f" ({found['cached_share']:.0%} cached)" if found["cached_share"] is not None else ""
        earlier = f", {found['by_an_earlier_run']} of them by an earlier run" if found["by_an_earlier_run"] else ""
        lines = [
            "# Batch report",
            "",
            f"- {found['ok']} of {found['agents']} agents have an output{earlier}.",
            f"- Time of this run: {self.wall_s:.1f} s. Model calls: {found['model_calls']:,}.",
            f"- Tokens: {usage.prompt_tokens:,} of prompts{cached}, {usage.completion_tokens:,} of answers.",
            f"- Calls of tools: {found['tool_calls']:,}, of which sharing saved {found['tool_calls_saved']:,}.",
            "",
            *self._split_lines(),
            *self._failure_lines(),
            *self._result_lines(),
        ]
        return "\n".join(lines) + "\n"

    def _split_lines(self) -> list[str]:
        split = asdict(self.split)
        whole = sum(split.values()) or 1.0
        words = {"queued_s": "queue of the gateway", "model_s": "model", "tools_s": "tools", "other_s": "other"}
        rows = [f"| {words[name]} | {seconds:.1f} | {seconds / whole:.0%} |" for name, seconds in split.items()]
        return ["## Where the agents' time went", "", "| | seconds | share |", "|---|---|---|", *rows, ""]

    def _failure_lines(self) -> list[str]:
        if not self.failures:
            return []
        rows = [
            f"| {type_} | {len(failed)} | {'yes' if error.retryable else 'no'} | {_cell(error.message)} |"
            for type_, failed in self.failures.items()
            if (error := failed[0].error) is not None
        ]
        head = ["| error | agents | may pass | one of them |", "|---|---|---|---|"]
        return ["## Failures", "", *head, *rows, ""]

    def _result_lines(self) -> list[str]:
        rows = [_row(result) for result in self.results]
        head = "| input | result | seconds | calls | tokens | session | last receipt | output or error |"
        return ["## Results", "", head, "|---" * 8 + "|", *rows]


def _row(result: AgentResult) -> str:
    state = "ok" if result.error is None else result.error.type
    figures = f"{result.timings.total_s:.1f} | {result.turns} | {result.usage.total_tokens:,}"
    return (
        f"| {result.index} | {state} | {figures} | {result.session} | {result.receipt} | {_cell(_said(result))} |"
    )


def _said(result: AgentResult) -> str:
    if result.error is not None:
        return result.error.message
    output = jsonable(result.output)
    return output if isinstance(output, str) else orjson.dumps(output, default=str).decode()


def _cell(text: str) -> str:
    """Return a text as one cell of a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= _MOST_CHARS else f"{line[: _MOST_CHARS - 3]}..."
