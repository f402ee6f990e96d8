"""Runs many agents against one gateway: a list of inputs in, a list of structured results out."""

from warnings import warn

from tool_runtime.distributions import overwritten

if (_mixture := overwritten()) is not None:
    warn(_mixture, stacklevel=2)  # first, since an import of mixed files may fail

from batch_agent.api import BatchAgent, map_gather, scatter_gather, tree_reduce
from batch_agent.outage import Outage
from batch_agent.results import AgentError, AgentResult, Timings, Usage
from batch_agent.spec import BatchSpec
from batch_agent.tools import Tool, ToolError

__all__ = [
    "AgentError",
    "AgentResult",
    "BatchAgent",
    "BatchSpec",
    "Outage",
    "Timings",
    "Tool",
    "ToolError",
    "Usage",
    "map_gather",
    "scatter_gather",
    "tree_reduce",
]
