"""The overhead benchmark: its clients ask what they say, its programs count right, its ratios are of one round."""

from __future__ import annotations

import shutil
import socket
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from benchmarks.overhead.bodies import ID, conversation
from benchmarks.overhead.cells import LOAD_CORE, SIZES, Reading, cells, compiled, reading
from benchmarks.overhead.peers import Peer, Started
from benchmarks.overhead.processes import running
from benchmarks.overhead.report import Figures, table
from tests.real.process import free_port


@pytest.mark.parametrize("size_bytes", SIZES.values())
def test_conversations_grow_only_at_their_end_and_have_their_size(size_bytes: int) -> None:
    bodies = conversation(size_bytes)
    assert sum(map(len, bodies)) / len(bodies) == pytest.approx(size_bytes, rel=0.15)
    parsed = [orjson.loads(body) for body in bodies]
    for earlier, later in pairwise(parsed):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    assert all(body.count(ID.encode()) == 1 for body in bodies)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_load_generator_counts_what_the_upstream_sends(tmp_path: Path) -> None:
    upstream, load = compiled(tmp_path)
    port = free_port()
    found = {cell.name: cell for cell in cells(tmp_path, is_quick=True)}
    with running([upstream, str(port)], tmp_path / "log", core=LOAD_CORE) as process:
        direct = Started(Peer("direct", lambda at: ()), port, process)
        while not listens(port):
            assert process.process.poll() is None
        stream = reading(load, found["st50"], direct)
    assert stream.errors == 0
    assert stream.cpu_us is not None
    assert stream.cpu_us > 0


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_ratio_is_taken_inside_one_round_and_shown_with_its_range() -> None:
    def one(cpu_us: float) -> Reading:
        return Reading(cpu_us, 1.0, 2.0, 3.0, 4.0, 0)

    rounds = [{"vllm-router": one(100.0), "turngate-fast": one(ours)} for ours in (50.0, 100.0, 300.0)]
    figures = Figures(["nginx"], {"s32": rounds})
    figures.start_s = {"vllm-router": 0.7, "turngate-fast": 0.5}
    text = table(figures)
    assert "| vllm-router | 1.00 [0.50-3.00] |" in text
    assert "not installed: nginx" in text
    assert "Failed requests: none." in text
