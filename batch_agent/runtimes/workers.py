"""The agents of a batch that are processes: a working copy for each, its process, its result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from batch_agent import process
from batch_agent.attending import outcome
from batch_agent.budget import Budget
from batch_agent.checkpoint import Checkpoint, Saved
from batch_agent.dispatch import Attend
from batch_agent.errors import WorkerError, told
from batch_agent.outage import Look, Outage
from batch_agent.plan import Plan
from batch_agent.results import AgentResult, Timings, Usage, jsonable
from batch_agent.runtimes.workspace import Workspace
from batch_agent.schema import OutputSchema, output_of
from batch_agent.slots import Slots

GO_ON = "The connection to the model was lost, and is back. Go on where you were."


@dataclass(frozen=True, slots=True)
class Link:
    """What ties a worker to the batch."""

    base_url: str
    """Of the gateway, with /v1."""
    model: str
    session: str
    parent: str
    """The session of the batch."""
    workspace: Path
    state: Path
    """A directory for what the program keeps of itself."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of the program."""

    command: Sequence[str]
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


class Output(Protocol):
    """Reads what one run writes, line by line."""

    @property
    def text(self) -> str:
        """The last answer, so far."""

    @property
    def usage(self) -> Usage: ...

    @property
    def turns(self) -> int: ...

    @property
    def conversation(self) -> str:
        """By which the program goes on with it. Empty: it does not say."""

    def line(self, raw: bytes) -> None: ...


class Program(Protocol):
    """How one kind of agent is started and read."""

    def launch(self, link: Link, prompt: str, conversation: str = "") -> Launch | None:
        """With a `conversation`: to go on with it; None if it cannot."""

    def output(self) -> Output: ...


@dataclass(slots=True)
class Worker:
    """One agent: its program, run once, and again if its output has to be corrected."""

    program: Program
    link: Link
    env: Mapping[str, str]
    outage: Outage
    look: Look
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    _conversation: str = ""

    async def output(self, prompt: str, schema: OutputSchema | None) -> Any:
        """Raises AgentFailed."""
        return await output_of(schema, await self._through(self.program.launch(self.link, prompt)), self._correct)

    async def _correct(self, fault: str) -> str | None:
        again = self.program.launch(self.link, fault, self._conversation) if self._conversation else None
        return None if again is None else await self._through(again)

    async def _through(self, launch: Launch | None) -> str:
        """What the program answers. Where it failed since the gateway was gone, it goes on with its conversation;
        it is not begun again, since what it has done is not known."""
        failed: WorkerError | None = None

        async def run() -> str:
            nonlocal launch, failed
            if launch is None and failed is not None:
                raise failed
            assert launch is not None
            try:
                return await self._run(launch)
            except WorkerError as error:
                launch = self.program.launch(self.link, GO_ON, self._conversation) if self._conversation else None
                failed = WorkerError(f"{error} (the gateway was gone, and the program cannot go on)")
                failed.retryable = True
                raise

        return await self.outage.through(run, self.look, is_answer=False)

    async def _run(self, launch: Launch) -> str:
        written = self.program.output()
        # Programs believe PWD, and the one that we inherited is not where they are.
        env = {**self.env, **launch.env, "PWD": str(self.link.workspace)}
        try:
            await process.run(launch.command, launch.stdin.encode(), self.link.workspace, env, written.line)
        finally:
            self.usage += written.usage
            self.turns += written.turns
            self._conversation = written.conversation or self._conversation
        return written.text


@dataclass(slots=True)
class Workers:
    """Those of one batch."""

    program: Program
    plan: Plan
    slots: Slots
    """Processes at once."""
    budget: Budget
    checkpoint: Checkpoint | None
    link: Link
    """Of the batch: each worker's has its own session, and directories below these."""
    env: Mapping[str, str]
    source: Path
    """What they work on."""
    is_isolated: bool
    keeps_workspaces: bool
    began_at: float
    outage: Outage
    look: Look

    async def prepare(self, index: int, prompt: str) -> AgentResult | Attend:
        saved = Saved()
        if self.checkpoint is not None:
            kind = type(self.program).__name__
            saved = await self.checkpoint.load(self.checkpoint.key(kind, *self.plan.content(prompt)))
            if (result := saved.result(index, self.plan.schema)) is not None:
                return result
        await self.slots.take(0)  # here, since whoever begins has to have one
        return lambda: self._attend(index, prompt, saved.key)

    async def _attend(self, index: int, prompt: str, key: bytes) -> AgentResult:
        name = f"{index:06d}"  # of one length, so that the prompts that hold it stay alike
        link = replace(
            self.link,
            session=f"{self.link.parent}-{index}",
            workspace=self.link.workspace / name if self.is_isolated else self.source,
            state=self.link.state / name,
        )
        worker = Worker(self.program, link, self.env, self.outage, self.look)
        started_at = asyncio.get_running_loop().time()
        try:
            work = self._in_workspace(worker, prompt)
            output, failure = await outcome(work, self.plan.spec.timeout_per_agent, self.budget)
            patch = await asyncio.to_thread(Workspace(link.workspace).patch) if self.is_isolated else ""
        finally:
            self.slots.give()
            await asyncio.to_thread(self._clear, link)
        if self.checkpoint is not None and failure is None:
            await self.checkpoint.done(key, jsonable(output), patch)
        self.budget.spend(worker.usage)
        total_s = asyncio.get_running_loop().time() - started_at
        return AgentResult(
            job_id=f"job-{index}",
            index=index,
            output=output,
            error=told(failure) if failure else None,
            turns=worker.turns,
            usage=worker.usage,
            timings=Timings(started_at - self.began_at, total_s),
            session=link.session,
            workspace=str(link.workspace) if self.keeps_workspaces else "",
            patch=patch,
        )

    async def _in_workspace(self, worker: Worker, prompt: str) -> Any:
        """The output. Raises AgentFailed, OSError, subprocess.CalledProcessError."""
        self.budget.check()
        await asyncio.to_thread(worker.link.state.mkdir, parents=True)
        if self.is_isolated:
            await asyncio.to_thread(Workspace(worker.link.workspace).fill, self.source)
        return await worker.output(self._whole(prompt), self.plan.schema)

    def _whole(self, prompt: str) -> str:
        """What is the same for all workers first."""
        schema = self.plan.schema
        instruction = schema.instruction if schema else ""
        return "\n\n".join(filter(None, [self.plan.spec.system_prompt, instruction, prompt]))

    def _clear(self, link: Link) -> None:
        Workspace(link.state).remove()
        if self.is_isolated and not self.keeps_workspaces:
            Workspace(link.workspace).remove()
