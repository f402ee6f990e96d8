"""What the log says of a request leads back to it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import orjson
import pytest

from gateway.config.settings import Logging
from gateway.telemetry import logs
from policies.placement import by_prefix
from policies.policy import Progress
from policies.turns import Turns
from policies.types import Family, Turn
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine

ASK = {"model": "m", "messages": [{"role": "user", "content": "a secret"}]}


class Broken(Turns):
    """A policy with a fault."""

    def __init__(self) -> None:
        super().__init__(by_prefix)

    def rank(self, turn: Turn, session: Progress, family: Family) -> float:
        raise RuntimeError("a fault of ours")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The log of the process, one object per line."""
    root = logging.getLogger()
    handlers, level, stream = root.handlers[:], root.level, io.StringIO()
    logs.setup(Logging(format="json"), stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_a_line_names_request_session_and_tenant_and_holds_no_content(
    start: Start, engine: FakeEngine, written: io.StringIO
) -> None:
    gateway = await start(engine)
    answer = await gateway.ask(ASK, x_request_id="mine-1")
    (line,) = [row for row in map(orjson.loads, written.getvalue().splitlines()) if row["message"] == "request"]
    assert line["request_id"] == "mine-1"
    assert line["id"] == answer.headers["X-Turngate-Receipt"]
    assert line["session"] == answer.headers["X-Turngate-Session"]
    assert (line["tenant"], line["outcome"], line["level"]) == ("default", "answered", "info")
    assert "a secret" not in written.getvalue()


async def test_a_client_s_own_id_of_a_session_is_logged_as_a_hash(
    start: Start, engine: FakeEngine, written: io.StringIO
) -> None:
    gateway = await start(engine)
    answer = await gateway.ask(ASK, X_Turngate_Session="ticket-4711", User_Agent="fixer/2.0")
    (line,) = [row for row in map(orjson.loads, written.getvalue().splitlines()) if row["message"] == "request"]
    assert (line["client_session"], line["agent"]) == (answer.headers["X-Turngate-Session"], "fixer")
    assert "ticket-4711" not in written.getvalue()


async def test_a_stack_trace_names_its_request(start: Start, engine: FakeEngine, written: io.StringIO) -> None:
    gateway = await start(engine, policy={"name": "tests.path.test_logs:Broken"})
    answer = await gateway.ask(ASK)
    assert answer.status == 500
    rows = [orjson.loads(row) for row in written.getvalue().splitlines()]
    (trace,) = [row["exception"] for row in rows if "exception" in row]
    (line,) = [row for row in rows if row["message"] == "request"]
    assert "a fault of ours" in trace
    assert f"request {line['id']}" in trace
    assert "fault" not in answer.body.decode()
