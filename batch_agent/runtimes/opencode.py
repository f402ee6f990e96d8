"""OpenCode: `opencode run` with a provider that points at the gateway, its JSON events read as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from batch_agent.results import Usage, WorkerError
from batch_agent.runtimes.base import Launch, Link, Output, Runtime

_PROVIDER = "batch"
_QUIET = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


@dataclass
class OpenCodeRuntime(Runtime):
    """`OpenCodeRuntime(backend="vllm://host:8000", model="Qwen/Qwen3-32B")`.

    Every worker is a session of the batch at the gateway. It asks for no permissions. Its changes go to its own
    copy, but its shell can reach everything that you can.
    """

    opencode_bin: str = "opencode"
    model_alias: str | None = None
    context_limit: int = 32768
    output_limit: int = 4096
    temperature: bool = True
    tool_call: bool = True

    remedy = ": npm install -g opencode-ai, or give its path as opencode_bin"

    @property
    def program(self) -> str:
        return self.opencode_bin

    def launch(self, link: Link, prompt: str, conversation: str = "") -> Launch:
        """Send the prompt to standard input: OpenCode quotes arguments, and the system bounds their length."""
        go_on = ["--session", conversation] if conversation else []
        model = f"{_PROVIDER}/{self._alias(link)}"
        command = [self.opencode_bin, "run", "--format", "json", "--model", model, *go_on]
        own_places = {name: str(link.state / name) for name in ("XDG_DATA_HOME", "XDG_STATE_HOME")}
        config = orjson.dumps(self._config(link)).decode()
        return Launch(command, prompt, {**_QUIET, **own_places, "OPENCODE_CONFIG_CONTENT": config})

    def output(self) -> Output:
        return Events()

    def _alias(self, link: Link) -> str:
        return self.model_alias or link.model

    def _config(self, link: Link) -> dict[str, Any]:
        model = {
            "id": link.model,
            "name": link.model,
            "tool_call": self.tool_call,
            "temperature": self.temperature,
            "limit": {"context": self.context_limit, "output": self.output_limit},
        }
        options = {
            "baseURL": link.base_url,
            "apiKey": "{env:OPENAI_API_KEY}",
            "headers": {"X-Turngate-Session": link.session, "X-Turngate-Parent": link.parent},
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "batch-agent",
            "options": options,
            "models": {self._alias(link): model},
        }
        # OpenCode takes a snapshot at each step for undoing, which does not happen here.
        quiet = {"snapshot": False, "autoupdate": False, "share": "disabled"}
        return {"provider": {_PROVIDER: provider}, "permission": "allow", **quiet}


class Events:
    """The output of `opencode run --format json`: one event per line."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.turns = 0
        self.conversation = ""
        self._texts: list[str] = []
        """Texts of the latest step."""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def line(self, raw: bytes) -> None:
        """Read an event. Raises WorkerError for an error event."""
        try:
            event = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return  # a line of a plugin or of a child
        if not isinstance(event, dict):
            return
        self.conversation = event.get("sessionID") or self.conversation
        part = event.get("part") or {}
        match event.get("type"):
            case "step_start":
                self._texts = []
            case "text":
                self._texts.append(part.get("text") or "")
            case "step_finish":
                self._count(part.get("tokens") or {})
            case "error":
                error = event.get("error") or {}
                said = (error.get("data") or {}).get("message") or error.get("name") or error
                raise WorkerError(f"opencode: {str(said)[:1000]}")

    def _count(self, tokens: dict[str, Any]) -> None:
        """Add the tokens of a step. `input` counts those that were not in the cache."""
        cached = (tokens.get("cache") or {}).get("read") or 0
        made = (tokens.get("output") or 0) + (tokens.get("reasoning") or 0)
        self.turns += 1
        self.usage += Usage((tokens.get("input") or 0) + cached, cached, made)
