"""Pages of real engines, recorded: what each release answered when it was polled, histogram buckets left out."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "engines"
_FILES = {
    "/metrics": "metrics.txt",
    "/v1/models": "models.json",
    "/health": "health.json",
    "/version": "version.json",
    "/openapi.json": "openapi.json",
    "/server_info": "server_info.json",
    "/v1/loads": "loads.json",
    "/busy_threshold": "busy_threshold.json",
}


def pages(release: str) -> dict[str, str]:
    """Path -> text of the pages that were recorded of a release, such as `dynamo-1.6-four`."""
    folder = DATA / release
    return {path: (folder / name).read_text() for path, name in _FILES.items() if (folder / name).exists()}


def text(release: str, name: str) -> str:
    return (DATA / release / name).read_text()
