"""Which real parts the tests use, in which versions, and where they are installed."""

import os
from pathlib import Path

VLLM_VERSION = "0.32.0"
SGLANG_VERSION = "0.5.23"
DYNAMO_VERSION = "1.6.1"
OPENCODE_VERSION = "1.18.33"
CODEX_VERSION = "0.169.0"
RIPGREP_VERSION = "1.18.0"
OPENAI_NODE_VERSION = "7.57.0"
ANTHROPIC_NODE_VERSION = "1.12.0"
NODE_VERSION = "22.23.3"
"""Of agents that do not run on Node 20; from npm."""
CLAUDE_CODE_VERSION = "2.1.330"
QWEN_CODE_VERSION = "0.24.4"
PI_VERSION = "0.87.1"
AI_SDK_VERSION = "7.0.173"
AI_SDK_COMPATIBLE_VERSION = "3.0.92"
AIDER_VERSION = "0.86.2"
"""Pins all its needs."""
AIDER_LITELLM_VERSION = "1.81.10"
"""One of them; tests call it too."""
SMOLAGENTS_VERSION = "1.26.0"
LANGCHAIN_OPENAI_VERSION = "1.7.3"
PYDANTIC_AI_VERSION = "2.68.0"
MCP_SERVER_VERSION = "2026.8.31"
SMG_VERSION = "1.13.0"
VLLM_ROUTER_VERSION = "0.1.17"
LITELLM_VERSION = "1.106.2"
PLAYWRIGHT_VERSION = "1.65.2"
CHROMIUM_VERSION = "147.0.0"
HELM_SDK_VERSION = "0.2.2"
"""Helm itself, as a library."""
KUBERNETES_VALIDATE_VERSION = "1.37.0"
COMPOSE_VERSION = "1.29.2"
"""The last one in Python: it brings the schema of compose files."""
ORIGINAL_VERSION = "0.2.0"
"""Of the `batch-agent` that ours is compatible with."""

CACHE_DIR = Path(os.environ.get("TURNGATE_CACHE") or Path.home() / ".cache" / "turngate")

VLLM_DIR = CACHE_DIR / "vllm"
VLLM_PYTHON = VLLM_DIR / "venv" / "bin" / "python"
TINY_MODEL_DIR = VLLM_DIR / "models" / "tiny-qwen3"
SMALL_MODEL_DIR = VLLM_DIR / "models" / "small-qwen3"

SGLANG_DIR = CACHE_DIR / "sglang"
SGLANG_PYTHON = SGLANG_DIR / "venv" / "bin" / "python"
SGLANG_TINY_MODEL_DIR = SGLANG_DIR / "models" / "tiny-qwen3"
SGLANG_SMALL_MODEL_DIR = SGLANG_DIR / "models" / "small-qwen3"

DYNAMO_DIR = CACHE_DIR / "dynamo"
DYNAMO_PYTHON = DYNAMO_DIR / "venv" / "bin" / "python"
DYNAMO_MODEL_DIR = DYNAMO_DIR / "model"
DYNAMO_TIMING_FILE = DYNAMO_DIR / "timing.npz"

OPENCODE_DIR = CACHE_DIR / "opencode"
OPENCODE_COMMAND = OPENCODE_DIR / "node_modules" / ".bin" / "opencode"
RIPGREP_BIN_DIR = OPENCODE_DIR / "node_modules" / "@vscode" / "ripgrep-linux-x64" / "bin"

CODEX_DIR = CACHE_DIR / "codex"
CODEX_COMMAND = CODEX_DIR / "node_modules" / ".bin" / "codex"

NODE_AGENTS_DIR = CACHE_DIR / "node-agents"
NODE_AGENTS_BIN_DIR = NODE_AGENTS_DIR / "node_modules" / ".bin"
NODE_COMMAND = NODE_AGENTS_BIN_DIR / "node"
CLAUDE_CODE_DIR = NODE_AGENTS_DIR / "node_modules" / "@anthropic-ai" / "claude-code"
CLAUDE_CODE_COMMAND = NODE_AGENTS_BIN_DIR / "claude"

AIDER_DIR = CACHE_DIR / "aider"
AIDER_PYTHON = AIDER_DIR / "venv" / "bin" / "python"

PYTHON_AGENTS_DIR = CACHE_DIR / "python-agents"
PYTHON_AGENTS_PYTHON = PYTHON_AGENTS_DIR / "venv" / "bin" / "python"

ORIGINAL_DIR = CACHE_DIR / "batch-agent" / "venv"
ORIGINAL_PYTHON = ORIGINAL_DIR / "bin" / "python"

SDKS_DIR = CACHE_DIR / "node-sdks"

MCP_DIR = CACHE_DIR / "mcp"
MCP_SERVER_SCRIPT = MCP_DIR / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"

PEERS_DIR = CACHE_DIR / "peers"
PEERS_PYTHON = PEERS_DIR / "venv" / "bin" / "python"

LITELLM_DIR = CACHE_DIR / "litellm"
LITELLM_PYTHON = LITELLM_DIR / "venv" / "bin" / "python"

NGINX_DIR = CACHE_DIR / "nginx"
NGINX_COMMAND = NGINX_DIR / "usr" / "sbin" / "nginx"

BROWSER_DIR = CACHE_DIR / "browser"
BROWSER_PYTHON = BROWSER_DIR / "venv" / "bin" / "python"
CHROMIUM_COMMAND = BROWSER_DIR / "chromium"
CHROMIUM_LIBRARIES = BROWSER_DIR / "al2023" / "lib"

DEPLOY_DIR = CACHE_DIR / "deploy"
DEPLOY_PYTHON = DEPLOY_DIR / "venv" / "bin" / "python"


class NotInstalledError(Exception):
    """A real part is missing; the message names the command that installs it."""


def require(part: str, *paths: Path) -> None:
    """Fail early and clearly instead of with a missing file inside a launcher."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise NotInstalledError(
            f"{part} is not installed ({missing[0]} is missing): run `python -m tests.real.install {part}`"
        )
