"""A working copy of a directory for one worker: a git repository of its own, so that its changes can be told."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from batch_agent import environment, process
from batch_agent.agent import Budget
from batch_agent.batch import Attend, kept, new_batch_id, only_model, outcome, reached
from batch_agent.calls import Slots
from batch_agent.checkpoint import Checkpoint, Saved
from batch_agent.connection import Connection
from batch_agent.environment import gateway_url
from batch_agent.outage import Look, Outage
from batch_agent.plan import Plan
from batch_agent.results import AgentResult, Timings, Usage, WorkerError, error_of, jsonable
from batch_agent.schema import OutputSchema, output_of
from batch_agent.spec import BatchSpec

_IDENTITY = ["-c", "user.name=batch-agent", "-c", "user.email=batch-agent@localhost"]
_PLAIN = ["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.autocrlf=false"]


class Workspace:
    """Blocking: for a thread. Raises OSError, subprocess.CalledProcessError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, source: Path) -> None:
        """Copy what git would: all files but the ignored ones, as they are now. Outside of a repository, all."""
        try:
            listed = _git(source, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        except subprocess.CalledProcessError:
            shutil.copytree(source, self.path, symlinks=True, dirs_exist_ok=True)
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in filter(None, os.fsdecode(listed).split("\0")):
                _copy(source / name, self.path / name)
        _git(self.path, "init", "--quiet")
        _git(self.path, "add", "--all", "--force")
        _git(self.path, "commit", "--quiet", "--allow-empty", "--message", "As it was given")

    def patch(self) -> str:
        """What has changed since, new files included; git applies it. Empty where it was not filled."""
        try:
            _git(self.path, "add", "--all")
            return _git(self.path, "diff", "--cached", "--binary", "HEAD").decode(errors="replace")
        except (OSError, subprocess.CalledProcessError):
            return ""

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _copy(file: Path, to: Path) -> None:
    if file.is_symlink() or file.is_file():  # not one that was deleted and is still tracked, nor a submodule
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, to, follow_symlinks=False)


def _git(directory: Path, *arguments: str) -> bytes:
    command = ["git", *_IDENTITY, *_PLAIN, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, check=True)  # noqa: S603 - our own words
    return done.stdout


# ---- the agents of a batch that are processes: a working copy for each, its process, its result

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
            await self.checkpoint.finish(key, jsonable(output), patch)
        self.budget.spend(worker.usage)
        total_s = asyncio.get_running_loop().time() - started_at
        return AgentResult(
            job_id=f"job-{index}",
            index=index,
            output=output,
            error=error_of(failure) if failure else None,
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


# --- What all runtimes share: where the workers work, how many, and how their models are reached.

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
