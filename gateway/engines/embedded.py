"""The embedded engine: it speaks as vLLM does, and states its slots, which vLLM does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.engines.base import Report
from gateway.engines.exposition import samples, total
from gateway.engines.vllm import Vllm

_SLOTS = "embedded:max_num_seqs"


class Embedded(Vllm):
    kind = "embedded"

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        report = super().parse_report(pages)
        slots = total(samples(pages.get("/metrics", ""), (_SLOTS,)), _SLOTS)
        if slots is None:
            return report
        return replace(report, pools=tuple(replace(pool, slots=int(slots)) for pool in report.pools))
