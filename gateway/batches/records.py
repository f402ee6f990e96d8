"""How stores keep batches and files: what is counted beside what is not, so that a count is one addition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import orjson

from gateway.batches.objects import Batch, Fault, File, Finished, Spent, Status

COUNTS = ("total", "completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def about(batch: Batch) -> bytes:
    """All of a batch that is not counted, as JSON."""
    return orjson.dumps(replace(batch, total=0, completed=0, failed=0, spent=Spent()))


def batch_of(about: bytes, counts: Sequence[int]) -> Batch:
    """`counts` in the order of COUNTS."""
    total, completed, failed, *tokens = counts
    told = orjson.loads(about)
    told |= {"status": Status(told["status"]), "errors": tuple(Fault(**fault) for fault in told["errors"])}
    told["allowed_tools"] = tuple(told["allowed_tools"])
    told |= {"total": total, "completed": completed, "failed": failed, "spent": Spent(*tokens)}
    return Batch(**told)


def counted(finished: Finished) -> dict[str, int]:
    """What a finished line adds to the counts of its batch."""
    return {"completed": int(finished.is_ok), "failed": int(not finished.is_ok)} | asdict(finished.spent)


def file_of(row: bytes) -> File:
    """A file that was kept as JSON."""
    return File(**orjson.loads(row))
