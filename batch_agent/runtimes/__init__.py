"""Agents that are programs of their own: OpenCode, or any other on the command line."""

from batch_agent.runtimes.base import Runtime
from batch_agent.runtimes.command import CommandRuntime
from batch_agent.runtimes.opencode import OpenCodeRuntime

__all__ = ["CommandRuntime", "OpenCodeRuntime", "Runtime"]
