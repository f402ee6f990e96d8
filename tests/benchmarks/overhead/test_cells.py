"""The programs of the overhead benchmark count right."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from benchmarks.overhead.cells import LOAD_CORE, cells, compiled, reading
from benchmarks.overhead.peers import Peer, RunningPeer
from benchmarks.overhead.processes import running
from tests.real.process import free_port


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_load_generator_counts_what_the_upstream_sends(tmp_path: Path) -> None:
    upstream, load = compiled(tmp_path)
    port = free_port()
    found = {cell.name: cell for cell in cells(tmp_path, is_quick=True)}
    with running([upstream, str(port)], tmp_path / "log", core=LOAD_CORE) as process:
        direct = RunningPeer(Peer("direct", lambda at: ()), port, process)
        while not listens(port):
            assert process.process.poll() is None
        stream = reading(load, found["st50"], direct)
    assert stream.errors == 0
    assert stream.cpu_us is not None
    assert stream.cpu_us > 0


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
