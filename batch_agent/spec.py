"""What a batch is asked for: the keywords of `BatchAgent.run`, their defaults and bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from batch_agent.results import AgentResult
from tool_runtime.agent_loop import Message

OUTAGE_S = 600.0
"""Longer than a gateway takes to be started again, by a person who was called."""

OnResult: TypeAlias = Callable[[AgentResult], Any]
Compact: TypeAlias = Callable[[list[Message], int], list[Message] | Awaitable[list[Message] | None] | None]
"""Told the messages and the tokens of the last prompt; returns what replaces them, or None to leave them."""


@dataclass(frozen=True)
class BatchSpec:
    """One batch. Raises ValueError and TypeError for what cannot be run."""

    task: str
    """A `str.format` template, filled once per input. Braces that are no field of an input stay as they are."""
    inputs: Sequence[Mapping[str, Any]]
    """One agent each."""
    system_prompt: str = ""
    tools: Sequence[Any] = ()
    """All that these agents can call: `Tool.define`d ones, names of built-in ones, or tools of `tool_runtime`."""
    output_schema: Any | None = None
    """A pydantic model or a JSON schema. None: the answer's text."""
    model: str = ""
    """Empty: the only one that the gateway serves."""
    backend: str = ""
    """Engine URL such as `vllm://host:8000`; a gateway is started for it where no other is named."""
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
    """Agents begun and not yet done. -1: no bound."""
    max_turns: int = 1
    """Model calls per agent, the one that corrects an output aside."""
    max_retries: int = 3
    """Times that a model call is sent again after a failure that may pass. Waiting when told to is no failure."""
    outage_s: float = OUTAGE_S
    """How long a gateway that has answered before, and does not any more, is waited for: no try is used up. 0: it
    is not."""
    timeout_per_agent: float | None = None
    """Seconds from an agent's first model call to its result, waiting at and for the gateway included."""
    timeout_per_turn: float | None = None
    """The same for one model call."""
    timeout_per_tool: float | None = 30
    budget_tokens: int | None = None
    """Prompt and completion tokens that the whole batch may use; then no further call is made."""
    budget_s: float | None = None
    """Seconds that the whole batch may take."""
    min_response_tokens: int = 1024
    model_max_context: int = 200_000
    """A task estimated to leave less than `min_response_tokens` of this is not sent."""
    schema_in_prompt: bool | None = None
    """Whether the system prompt states the output schema. None: where tools keep the engine from enforcing it."""
    transcript: bool = False
    """Whether results carry their agent's messages."""
    compact: Compact | None = None
    """Called before each later model call; the only way in which a history is ever changed."""
    on_result: OnResult | None = None
    """Told of each result as it comes; may be async."""
    checkpoint_dir: str | Path | None = None
    """Where finished turns are kept. The same batch run again goes on from there."""

    # Known to batch-agent 0.2.0, without effect here; docs/batch-agent.md says why.
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
        if reserved := _OURS & self.sampling.keys():
            raise ValueError(f"sampling cannot set {', '.join(sorted(reserved))}")

    @property
    def effective_max_inflight(self) -> int | None:
        """None: no bound was given."""
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
"""Whole numbers, with the least that means something."""
_TIMEOUTS = ("timeout_per_agent", "timeout_per_turn", "timeout_per_tool", "budget_s")
_SECONDS = (*_TIMEOUTS, "outage_s")
_MAY_BE_NONE = frozenset(("max_concurrent", "budget_tokens", *_TIMEOUTS))
_NAMES = {int: "a whole number", (int, float): "a number", str: "text", Collection: "a list", Mapping: "a mapping"}


def _must_be(name: str, value: Any, kind: Any) -> None:
    """Raises TypeError in the words of who wrote it."""
    if not isinstance(value, kind) or isinstance(value, bool) or (kind is Collection and isinstance(value, str)):
        raise TypeError(f"{name} must be {_NAMES[kind]}, not {value!r}")


_OURS = frozenset(
    ("model", "messages", "tools", "tool_choice", "response_format", "stream", "stream_options", "n")
)
