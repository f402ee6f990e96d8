"""What all runtimes share: where the workers work, how many, and how their models are reached."""

from __future__ import annotations

import asyncio
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from batch_agent import environment
from batch_agent.backend import gateway_url
from batch_agent.batch import kept, new_batch_id, only_model, reached
from batch_agent.budget import Budget
from batch_agent.connection import Connection
from batch_agent.outage import Outage
from batch_agent.plan import Plan
from batch_agent.runtimes.workers import Launch, Link, Output, Workers
from batch_agent.schema import OutputSchema
from batch_agent.slots import Slots
from batch_agent.spec import BatchSpec

DEFAULT_WORKERS = 10
"""Processes at once where nobody says how many: each takes some hundred MB."""
ANY_KEY = "any"
"""Agents want one, also where the gateway does not."""


@dataclass
class Runtime(ABC):
    """Runs the agents of a batch as processes, each in a working copy of `working_dir`.

    A result has the changes to the copy as `patch`. Tools are the program's own; `max_turns` and sampling, too.
    """

    backend: str = ""
    model: str = ""
    gateway: str = ""
    working_dir: str = "."
    extra_env: dict[str, str] = field(default_factory=dict)
    isolated: bool = True
    """False: all work in `working_dir` itself."""
    keep_workspaces: str = ""
    """A directory in which the working copies stay. Empty: they are removed."""

    @abstractmethod
    def launch(self, link: Link, prompt: str, conversation: str = "") -> Launch | None:
        """How to start the program; None if it cannot go on with a conversation."""

    @abstractmethod
    def output(self) -> Output:
        """Reads one run of it."""

    @asynccontextmanager
    async def opened(self, spec: BatchSpec, outage: Outage) -> AsyncIterator[tuple[Workers, Iterator[str]]]:
        """As `batch_agent.batch.opened`. Raises ValueError for a batch that needs what a program cannot do."""
        if spec.tools:
            raise ValueError("tools= cannot be given to a runtime: the program brings its own")
        now = asyncio.get_running_loop().time()
        schema = None if spec.output_schema is None else OutputSchema(spec.output_schema)
        plan = Plan(spec, spec.model or self.model, (), schema)
        prompts = plan.prompts()
        api_key = spec.api_key or environment.api_key()
        async with AsyncExitStack() as stack:
            base_url = await stack.enter_async_context(
                gateway_url(spec.gateway or self.gateway, spec.backend or self.backend)
            )
            connection = await stack.enter_async_context(Connection(base_url, api_key))
            checkpoint = await stack.enter_async_context(kept(spec))
            await reached(outage, connection, checkpoint)
            plan.model = plan.model or await only_model(connection, outage)
            place = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="batch-agent-", ignore_cleanup_errors=True))
            )
            batch_id = checkpoint.batch_id if checkpoint else new_batch_id()
            copies = _absolute(self.keep_workspaces) / batch_id if self.keep_workspaces else place / "work"
            yield (
                Workers(
                    program=self,
                    plan=plan,
                    slots=Slots(spec.effective_max_inflight or DEFAULT_WORKERS),
                    budget=Budget(spec.budget_tokens, None if spec.budget_s is None else now + spec.budget_s),
                    checkpoint=checkpoint,
                    link=Link(base_url, plan.model, "", batch_id, copies, place / "state"),
                    env={**environment.inherited(), **_openai(base_url, api_key), **self.extra_env},
                    source=_absolute(self.working_dir),
                    is_isolated=self.isolated,
                    keeps_workspaces=bool(self.keep_workspaces),
                    began_at=now,
                    outage=outage,
                    look=connection.problem,
                ),
                prompts,
            )


def _absolute(path: str) -> Path:
    """Links in it stay: agents see the path that the user knows."""
    return Path(path).absolute()


def _openai(base_url: str, api_key: str) -> dict[str, str]:
    """What agents on OpenAI's SDKs read; some read one, some the other."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": api_key or ANY_KEY,
    }
