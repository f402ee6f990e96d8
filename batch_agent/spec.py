"""The keywords of `BatchAgent.run`: their defaults, bounds and help."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from batch_agent.results import AgentResult
from tool_runtime.agent_loop import Message

OUTAGE_S = 600.0
"""Longer than a person on call takes to start a gateway again."""

OnResult: TypeAlias = Callable[[AgentResult], Any]
Compact: TypeAlias = Callable[[list[Message], int], list[Message] | Awaitable[list[Message] | None] | None]
"""Takes the messages and the tokens of the last prompt. Returns the messages that replace them, or None."""


@dataclass(frozen=True)
class BatchSpec:
    """One batch. Raises ValueError and TypeError for a batch that cannot run."""

    task: str
    """A `str.format` template, filled once per input. Braces that are no fields of an input stay as they are."""
    inputs: Sequence[Mapping[str, Any]]
    """One agent for each. `BatchAgent` takes a path too, such as `in.jsonl`, `in.csv` or `src/**/*.py`."""
    system_prompt: str = ""
    tools: Sequence[Any] = ()
    """All tools that these agents can call: of `Tool.define`, of `tool_runtime`, or built-in ones by name."""
    output_schema: Any | None = None
    """A pydantic model or a JSON schema. None: the output is the answer's text."""
    model: str = ""
    """Empty: the only model that the gateway serves."""
    backend: str = ""
    """Engine URL such as `vllm://host:8000`. A gateway starts for it where no other is named."""
    gateway: str = ""
    """Base URL of a running gateway. Empty: OPENAI_BASE_URL, else one in this process for `backend`."""
    api_key: str = ""
    """Bearer token for the gateway. Empty: OPENAI_API_KEY."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each model call: max_tokens, temperature, seed, ..."""
    max_inflight: int = -1
    """Model calls at once. -1: `max_concurrent`, else 1,024, or fewer where this process may not open so many
    connections."""
    max_concurrent: int | None = None
    max_dispatched: int = -1
    """Agents that have begun and not ended. -1: no bound."""
    max_turns: int = 1
    """Model calls per agent, without the one that corrects an output."""
    max_retries: int = 3
    """Times that a model call is sent again after a failure that may pass. Obeying `Retry-After` is no failure."""
    outage_s: float = OUTAGE_S
    """Seconds that calls wait for a gateway that has answered before and no longer does. They use up no retry. 0:
    they do not wait."""
    timeout_per_agent: float | None = None
    """Seconds from an agent's first model call to its result, with all waiting at and for the gateway."""
    timeout_per_turn: float | None = None
    """The same for one model call."""
    timeout_per_tool: float | None = 30
    budget_tokens: int | None = None
    """Prompt and completion tokens that the whole batch may use. After that it makes no further call."""
    budget_s: float | None = None
    """Seconds that the whole batch may take."""
    min_response_tokens: int = 1024
    model_max_context: int = 200_000
    """A task estimated to leave less than `min_response_tokens` of this is not sent."""
    schema_in_prompt: bool | None = None
    """Whether the system prompt states the output schema. None: if tools keep the engine from enforcing it."""
    transcript: bool = False
    """Whether results carry their agent's messages."""
    compact: Compact | None = None
    """Called before every model call but the first. Nothing else ever changes a history."""
    on_result: OnResult | None = None
    """Called with each result as it comes. It may be async."""
    checkpoint_dir: str | Path | None = None
    """Directory for finished turns. The same batch, run again, resumes from there."""

    # These keywords of batch-agent 0.2.0 have no effect here. docs/batch-agent.md says why.
    calibrate_backend: bool = False
    backpressure_ceiling: int = 0
    diff_kv: bool = False
    kvflow: bool = True
    strip_preamble: bool = True
    streaming_tool_dispatch: bool = True
    nvext_agent_hints: bool = False
    predictive_prewarm: bool = False
    no_hoist: bool = False
    reduce: str | None = None
    reduce_schema: Any | None = None
    compaction_backend_url: str | None = None
    distributed: bool = False
    node_id: str = "node-0"

    def __post_init__(self) -> None:
        for name, kind in (("task", str), ("inputs", Collection), ("sampling", Mapping)):
            _must_be(name, getattr(self, name), kind)
        for number, given in enumerate(self.inputs):
            _must_be(f"input {number}", given, Mapping)
        if not self.task:
            raise ValueError("task must not be empty")
        for name in (*_COUNTS, *_SECONDS):
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            _must_be(name, value, int if name in _COUNTS else (int, float))
            if (least := _COUNTS.get(name, 0)) is not None and value < least:
                raise ValueError(f"{name} must be >= {least}")
        if reserved := _RESERVED & self.sampling.keys():
            raise ValueError(f"sampling cannot set {', '.join(sorted(reserved))}")

    @property
    def effective_max_inflight(self) -> int | None:
        """None: the batch gives no bound."""
        return self.max_inflight if self.max_inflight > 0 else self.max_concurrent


_COUNTS = {
    "max_concurrent": 1,
    "max_turns": 1,
    "max_retries": 0,
    "budget_tokens": 0,
    "max_inflight": None,
    "max_dispatched": None,
    "min_response_tokens": None,
    "model_max_context": None,
}
"""Whole numbers, each with its least meaningful value."""
_TIMEOUTS = ("timeout_per_agent", "timeout_per_turn", "timeout_per_tool", "budget_s")
_SECONDS = (*_TIMEOUTS, "outage_s")
_MAY_BE_NONE = frozenset(("max_concurrent", "budget_tokens", *_TIMEOUTS))
_NAMES = {int: "a whole number", (int, float): "a number", str: "text", Collection: "a list", Mapping: "a mapping"}


def _must_be(name: str, value: Any, kind: Any) -> None:
    """Raises TypeError in the words of the user."""
    if not isinstance(value, kind) or isinstance(value, bool) or (kind is Collection and isinstance(value, str)):
        raise TypeError(f"{name} must be {_NAMES[kind]}, not {value!r}")


_RESERVED = frozenset(
    ("model", "messages", "tools", "tool_choice", "response_format", "stream", "stream_options", "n")
)


# ---- keywords that do not exist, with those that were perhaps meant

KEYWORDS = frozenset((*(field.name for field in fields(BatchSpec)), "runtime", "outage", "max_agents"))
_OF_A_MODEL_CALL = frozenset(
    (
        *(
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "stop",
            "logprobs",
        ),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "reasoning_effort", "extra_body", "user"),
    )
)
_MEANT = {
    "prompt": "task",
    "prompts": "inputs (one mapping for each) and task",
    "base_url": "gateway",
    "system": "system_prompt",
    "schema": "output_schema",
    "response_format": "output_schema",
    "concurrency": "max_concurrent",
    "max_workers": "max_concurrent",
    "timeout": "timeout_per_agent",
    "retries": "max_retries",
}


def hint(key: str) -> str:
    """Return the end of a message about a keyword that does not exist. Empty: none is similar."""
    if key in _OF_A_MODEL_CALL:
        return f" (did you mean sampling={{{key!r}: ...}}?)"
    meant = _MEANT.get(key) or next(iter(get_close_matches(key, KEYWORDS, n=1)), "")
    return f" (did you mean {meant}?)" if meant else ""
