"""Agents that are processes: each has a working copy of a directory, a session at the gateway, and a result."""

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
from typing import Any, ClassVar, Protocol

from batch_agent import environment, process
from batch_agent.agent import Budget
from batch_agent.batch import Attend, opened_gateway, outcome
from batch_agent.calls import Slots
from batch_agent.checkpoint import Checkpoint, Saved
from batch_agent.outage import Look, Outage
from batch_agent.plan import Plan
from batch_agent.results import AgentResult, Timings, Usage, WorkerError, error_of
from batch_agent.schema import OutputSchema, correction, output_of
from batch_agent.spec import BatchSpec

DEFAULT_WORKERS = 10
"""Processes at once where the batch gives no number. Each takes some hundred MB."""
ANY_KEY = "any"
"""Agents want a key, even where the gateway does not."""
GO_ON = "The connection to the model was lost, and is back. Go on where you were."


@dataclass(frozen=True, slots=True)
class Link:
    """The place of a worker in its batch."""

    base_url: str
    """Of the gateway, with /v1."""
    model: str
    session: str
    parent: str
    """The session of the batch."""
    workspace: Path
    state: Path
    """A directory for the program's own records."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of the program."""

    command: Sequence[str]
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


class Output(Protocol):
    """Reads the output of one run, line by line."""

    @property
    def text(self) -> str:
        """The last answer, so far."""

    @property
    def usage(self) -> Usage: ...

    @property
    def turns(self) -> int: ...

    @property
    def conversation(self) -> str:
        """The name under which the program resumes this run. Empty: it gives none."""

    def line(self, raw: bytes) -> None: ...


@dataclass
class Runtime(ABC):
    """Runs the agents of a batch as processes, each in a working copy of `working_dir`.

    A result has the changes to the copy as `patch`. Tools, `max_turns` and sampling are the program's own.
    """

    backend: str = ""
    model: str = ""
    gateway: str = ""
    working_dir: str = "."
    extra_env: dict[str, str] = field(default_factory=dict)
    isolated: bool = True
    """False: all agents work in `working_dir` itself."""
    keep_workspaces: str = ""
    """A directory in which the working copies stay. Empty: they are removed."""
    remedy: ClassVar[str] = ""
    """What to do where the program is missing, as the end of a message."""

    @abstractmethod
    def launch(self, link: Link, prompt: str, conversation: str = "") -> Launch | None:
        """Return how to start the program, or to resume a conversation. None: the program cannot resume."""

    @property
    @abstractmethod
    def program(self) -> str:
        """The program that is started, by its name or path."""

    def refuse_missing_program(self) -> None:
        """Raises ValueError where no agent could start. A relative path is one of a working copy, made later."""
        is_later = os.sep in self.program and not os.path.isabs(self.program)
        if not is_later and shutil.which(self.program, path=self.extra_env.get("PATH")) is None:
            raise ValueError(f"there is no program {self.program!r} on PATH{self.remedy}")

    @abstractmethod
    def output(self) -> Output:
        """Return a reader for one run."""

    @asynccontextmanager
    async def opened(self, spec: BatchSpec, outage: Outage) -> AsyncIterator[tuple[Workers, Iterator[str]]]:
        """Like `batch_agent.batch.opened`. Raises ValueError for a batch that needs more than a program can do."""
        if spec.tools:
            raise ValueError("tools= cannot be given to a runtime: the program brings its own")
        self.refuse_missing_program()
        now = asyncio.get_running_loop().time()
        schema = None if spec.output_schema is None else OutputSchema(spec.output_schema)
        plan = Plan(spec, spec.model or self.model, (), schema)
        prompts = plan.prompts()
        api_key = spec.api_key or environment.api_key()
        spec = replace(spec, gateway=spec.gateway or self.gateway, backend=spec.backend or self.backend)
        async with AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(opened_gateway(spec, plan, outage))
            directory = tempfile.TemporaryDirectory(prefix="batch-agent-", ignore_cleanup_errors=True)
            place = Path(stack.enter_context(directory))
            keep = _absolute(self.keep_workspaces) / gateway.batch_id if self.keep_workspaces else None
            base_url, batch_id = gateway.connection.base_url, gateway.batch_id
            yield (
                Workers(
                    runtime=self,
                    plan=plan,
                    slots=Slots(spec.effective_max_inflight or DEFAULT_WORKERS),
                    budget=Budget(spec.budget_tokens, None if spec.budget_s is None else now + spec.budget_s),
                    checkpoint=gateway.checkpoint,
                    link=Link(base_url, plan.model, "", batch_id, keep or place / "work", place / "state"),
                    env={**environment.inherited(), **_openai(base_url, api_key), **self.extra_env},
                    source=_absolute(self.working_dir),
                    began_at=now,
                    outage=outage,
                    look=gateway.connection.problem,
                ),
                prompts,
            )


def _absolute(path: str) -> Path:
    """Keep symbolic links: agents see the path that the user knows."""
    return Path(path).absolute()


def _openai(base_url: str, api_key: str) -> dict[str, str]:
    """Return the variables of agents on OpenAI's SDKs. Some read one URL, some the other."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": api_key or ANY_KEY,
    }


@dataclass(slots=True)
class Workers:
    """The workers of one batch."""

    runtime: Runtime
    plan: Plan
    slots: Slots
    """Processes at once."""
    budget: Budget
    checkpoint: Checkpoint | None
    link: Link
    """Of the batch. Each worker has its own session, and directories below these."""
    env: Mapping[str, str]
    source: Path
    """The directory that they work on."""
    began_at: float
    outage: Outage
    look: Look

    async def prepare(self, index: int, prompt: str) -> AgentResult | Attend:
        saved = Saved()
        if self.checkpoint is not None:
            kind = type(self.runtime).__name__
            saved = await self.checkpoint.load(self.checkpoint.key(kind, *self.plan.content(prompt)))
            if (result := saved.result(index, self.plan.schema)) is not None:
                return result
        await self.slots.take(0)  # here, because an agent that has begun has to have a slot
        return lambda: self._attend(index, prompt, saved.key)

    async def _attend(self, index: int, prompt: str, key: bytes) -> AgentResult:
        name = f"{index:06d}"  # of one length, so that the prompts that hold it stay alike
        is_isolated = self.runtime.isolated
        link = replace(
            self.link,
            session=f"{self.link.parent}-{index}",
            workspace=self.link.workspace / name if is_isolated else self.source,
            state=self.link.state / name,
        )
        worker = Worker(self.runtime, link, self.env, self.outage, self.look)
        clock = asyncio.get_running_loop().time
        started_at = clock()
        try:
            work = self._in_workspace(worker, prompt)
            output, failure = await outcome(work, self.plan.spec.timeout_per_agent, self.budget)
            patch = await asyncio.to_thread(Workspace(link.workspace).patch) if is_isolated else ""
        finally:
            self.slots.give()
            await asyncio.to_thread(self._clear, link)
        self.budget.spend(worker.usage)
        result = AgentResult(
            job_id=f"job-{index}",
            index=index,
            output=output,
            error=error_of(failure) if failure else None,
            turns=worker.turns,
            usage=worker.usage,
            timings=Timings(started_at - self.began_at, clock() - started_at),
            session=link.session,
            workspace=str(link.workspace) if self.runtime.keep_workspaces else "",
            patch=patch,
        )
        if self.checkpoint is not None and failure is None:
            await self.checkpoint.finish(key, result)
        return result

    async def _in_workspace(self, worker: Worker, prompt: str) -> Any:
        """Return the output. Raises AgentFailed, OSError, subprocess.CalledProcessError."""
        self.budget.check()
        await asyncio.to_thread(worker.link.state.mkdir, parents=True)
        if self.runtime.isolated:
            await asyncio.to_thread(Workspace(worker.link.workspace).fill, self.source)
        return await worker.output(self._whole(prompt), self.plan.schema)

    def _whole(self, prompt: str) -> str:
        """Put the texts that are equal for all workers first."""
        schema = self.plan.schema
        instruction = schema.instruction if schema else ""
        return "\n\n".join(filter(None, [self.plan.spec.system_prompt, instruction, prompt]))

    def _clear(self, link: Link) -> None:
        Workspace(link.state).remove()
        if self.runtime.isolated and not self.runtime.keep_workspaces:
            Workspace(link.workspace).remove()


@dataclass(slots=True)
class Worker:
    """One agent: its program, run once, and again if its output has to be corrected."""

    runtime: Runtime
    link: Link
    env: Mapping[str, str]
    outage: Outage
    look: Look
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    _conversation: str = ""

    async def output(self, prompt: str, schema: OutputSchema | None) -> Any:
        """Raises AgentFailed."""
        return await output_of(schema, await self._through(self.runtime.launch(self.link, prompt)), self._correct)

    async def _correct(self, fault: str) -> str | None:
        again = self._resumed(correction(fault))
        return None if again is None else await self._through(again)

    def _resumed(self, prompt: str) -> Launch | None:
        return self.runtime.launch(self.link, prompt, self._conversation) if self._conversation else None

    async def _through(self, launch: Launch | None) -> str:
        """Return the answer of the program. A program that failed because the gateway was gone resumes its
        conversation. It does not start over, since its effects so far are unknown."""
        failed: WorkerError | None = None

        async def run() -> str:
            nonlocal launch, failed
            if launch is None and failed is not None:
                raise failed
            assert launch is not None
            try:
                return await self._run(launch)
            except WorkerError as error:
                launch = self._resumed(GO_ON)
                failed = WorkerError(f"{error} (the gateway was gone, and the program cannot go on)")
                failed.retryable = True
                raise

        return await self.outage.through(run, self.look, is_answer=False)

    async def _run(self, launch: Launch) -> str:
        written = self.runtime.output()
        # Programs believe PWD, and the inherited one is not their directory.
        env = {**self.env, **launch.env, "PWD": str(self.link.workspace)}
        try:
            await process.run(launch.command, launch.stdin.encode(), self.link.workspace, env, written.line)
        finally:
            self.usage += written.usage
            self.turns += written.turns
            self._conversation = written.conversation or self._conversation
        return written.text


# ---- working copies: git repositories of their own, which show their changes

_IDENTITY = ["-c", "user.name=batch-agent", "-c", "user.email=batch-agent@localhost"]
_PLAIN = ["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.autocrlf=false"]


class Workspace:
    """A working copy. Its methods block: call them in a thread. Raises OSError, subprocess.CalledProcessError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, source: Path) -> None:
        """Copy all files but those that git ignores, as they are now. Outside of a repository, copy all."""
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
        """Return the changes since `fill`, new files included, for `git apply`. Empty where nothing was filled."""
        try:
            _git(self.path, "add", "--all")
            return _git(self.path, "diff", "--cached", "--binary", "HEAD").decode(errors="replace")
        except (OSError, subprocess.CalledProcessError):
            return ""

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _copy(file: Path, to: Path) -> None:
    if file.is_symlink() or file.is_file():  # not a submodule, nor a tracked file that was deleted
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, to, follow_symlinks=False)


def _git(directory: Path, *arguments: str) -> bytes:
    command = ["git", *_IDENTITY, *_PLAIN, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, check=True)  # noqa: S603 - no foreign words
    return done.stdout
