"""Tools that a gateway under test loads by their import path."""

from tool_runtime.define import define
from tool_runtime.types import Effect

RESULT_WORDS = 120


async def web_search(query: str) -> str:
    """Searches the web.

    Args:
        query: what to look for
    """
    return " ".join(f"{query}-{n}" for n in range(RESULT_WORDS))


SEARCH = define(web_search, effect=Effect.READ_ONLY)
USE = [{"use": f"{__name__}:SEARCH", "ttl_s": 60}]
"""The setting `tools.use`."""
