"""What stands between the clients and the upstream: other gateways and Turngate, started as their makers say."""

from __future__ import annotations

import http.client
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.overhead.processes import MeasuredProcess, running
from tests.real import parts
from tests.real.process import free_port, tail

READY_S = 90.0
NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 10000000;
  client_max_body_size 0; client_body_buffer_size 1m; client_body_temp_path {folder};
  proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream engine {{ server {upstream}; keepalive 1024; keepalive_requests 10000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
LITELLM = """
model_list: [{{model_name: fake, litellm_params: {{model: openai/fake, api_base: "{url}/v1", api_key: sk-x}}}}]
litellm_settings: {{set_verbose: false, num_retries: 0, request_timeout: 600, callbacks: []}}
"""
LITELLM_ENV = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MASTER_KEY": "sk-0123456789abcdef",
}


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a peer is started."""

    url: str
    """Of the upstream."""
    port: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway, or the way without any."""

    name: str
    command: Callable[[PeerAddress], Sequence[str | Path]]
    needs: Path | None = None
    """The program; without it the peer is left out."""
    env: tuple[tuple[str, str], ...] = ()
    is_slow: bool = False
    """Left out of what would take it minutes."""


@dataclass(frozen=True, slots=True)
class RunningPeer:
    peer: Peer
    port: int
    process: MeasuredProcess | None
    start_s: float = 0.0
    """Until it answered its first request."""
    rss_mb: float = 0.0
    """Then."""


def all_peers() -> list[Peer]:
    nginx = shutil.which("nginx")
    ours = [_ours("turngate-aiohttp", "aiohttp")]
    if find_spec("gateway.transport.fast_server") or find_spec("gateway.transport.fast"):
        ours.append(_ours("turngate-fast", "fast"))
    return [
        Peer("nginx", _nginx, Path(nginx) if nginx else parts.NGINX_COMMAND),
        Peer("aiohttp-proxy", lambda at: (*_python("benchmarks.overhead.aiohttp_proxy"), str(at.port), at.url)),
        _rust("smg", ("launch", "--backend", "vllm")),
        _rust("vllm-router", ()),
        *ours,
        Peer("litellm", _litellm, parts.LITELLM_PYTHON, tuple(LITELLM_ENV.items()), is_slow=True),
    ]


@contextmanager
def started(peer: Peer, upstream_port: int, folder: Path, core: int, body: bytes) -> Iterator[RunningPeer]:
    """A peer that has answered `body` once. Raises RuntimeError when it does not."""
    place = PeerAddress(f"http://127.0.0.1:{upstream_port}", free_port(), folder / peer.name)
    place.folder.mkdir()
    command, log = peer.command(place), place.folder / "log"
    began_at = time.monotonic()
    with running(command, log, core, dict(peer.env)) as process:
        while not _answers(place.port, body):
            if process.process.poll() is not None or time.monotonic() - began_at > READY_S:
                raise RuntimeError(f"{peer.name} did not start:\n{tail(log)}")
            time.sleep(0.01)
        start_s = time.monotonic() - began_at
        time.sleep(1.0)
        yield RunningPeer(peer, place.port, process, start_s, process.rss_mb())


def _answers(port: int, body: bytes) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-0123456789abcdef"}
    with suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/v1/chat/completions", body, headers)
        return connection.getresponse().status == 200
    return False


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


def _ours(name: str, transport: str) -> Peer:
    """As shipped, but for the log, which the others have off too."""
    settings = ["--set", "logging.level=warning"]
    if name == "turngate-fast" or find_spec("gateway.transport.fast"):
        settings += ["--set", f"transport={transport}"]

    def command(at: PeerAddress) -> Sequence[str | Path]:
        engine = at.url.replace("http", "vllm")
        return *_python("gateway"), "serve", "--engine", engine, "--port", str(at.port), *settings

    return Peer(name, command)


def _rust(name: str, options: Sequence[str]) -> Peer:
    program = parts.PEERS_PYTHON.with_name(name)

    def command(at: PeerAddress) -> Sequence[str | Path]:
        where = ("--worker-urls", at.url, "--host", "127.0.0.1", "--port", str(at.port))
        quiet = ("--log-level", "error", "--prometheus-port", str(free_port()))
        return program, *options, "--policy", "round_robin", *where, *quiet

    return Peer(name, command, program)


def _nginx(at: PeerAddress) -> Sequence[str | Path]:
    conf = at.folder / "nginx.conf"
    conf.write_text(NGINX.format(folder=at.folder, upstream=at.url.removeprefix("http://"), port=at.port))
    return shutil.which("nginx") or parts.NGINX_COMMAND, "-p", at.folder, "-c", conf


def _litellm(at: PeerAddress) -> Sequence[str | Path]:
    conf = at.folder / "litellm.yaml"
    conf.write_text(LITELLM.format(url=at.url))
    program = parts.LITELLM_PYTHON.with_name("litellm")
    return program, "--config", conf, "--port", str(at.port), "--num_workers", "1", "--telemetry", "False"
