"""Every dashboard panel and alert asks for metrics and labels that the gateway really has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.batches.runner import BatchMetrics
from gateway.core.errors import EngineFault
from gateway.tools.wiring import ToolAudit
from policies.types import Usage
from tests.telemetry.observed import exchange, observer
from tool_runtime.types import Call, Context, Execution, Origin, Result, Status

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/turngate.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())

METRIC = re.compile(r"\b((?:turngate|process)_[a-z_]+)(?:\{([^}]*)\})?")
BY = re.compile(r"\bby \(([^)]*)\)")
ADDED_BY_PROMETHEUS = {"instance", "job", "le"}


RAN: dict[str, Any] = {
    "arguments_sha256": "",
    "started_at": 1.0,
    "seconds": 2.0,
    "status": Status.OK,
    "shared_by": 1,
}


def labels_by_series() -> dict[str, set[str]]:
    """Every series that a scrape of a busy gateway shows, with its labels."""
    seen = observer()
    for cached_tokens in (900, 100):
        done = exchange()
        done.reply.usage = Usage(1000, cached_tokens, 50)
        seen.finished(done)
    seen.hinted("vllm", ["priority"], "sent")
    seen.retried("engine_cut")
    seen.faulted("vllm", EngineFault.ERROR)
    seen.limited("tokens")
    seen.metrics.prefix_breaks.add(1, "date")
    seen.metrics.prefix_break_tokens.add(1, "date")
    tools = ToolAudit(seen.metrics.registry, lambda name: True)
    tools.executed(Execution(tool="search", source="", call_id="c", context=Context("a"), **RAN))
    for origin in (Origin.COALESCED, Origin.CACHED):
        call = Call("c", "search", "{}")
        tools.answered(Result(call=call, status=Status.ERROR, text="", origin=origin, saved_s=1.0))
    batches = BatchMetrics(seen.metrics.registry, lambda: 1, lambda: 2)
    batches.count_line("/v1/chat/completions", is_ok=True)
    families = text_string_to_metric_families(seen.metrics.exposition().decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


SERIES = labels_by_series()


def expressions() -> list[Any]:
    shown = [
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]
    return shown + [pytest.param(rule["expr"], id=rule["alert"]) for rule in alerts()]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_that_is_asked_for_exists(expression: str) -> None:
    uses = METRIC.findall(expression)
    grouped = {name.strip() for group in BY.findall(expression) for name in group.split(",")}
    assert uses or expression.startswith("up{")
    for name, selector in uses:
        assert name in SERIES
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= SERIES[name] | ADDED_BY_PROMETHEUS
        assert grouped <= SERIES[name] | ADDED_BY_PROMETHEUS


@pytest.mark.parametrize("expression", expressions())
def test_expressions_are_balanced(expression: str) -> None:
    assert all(expression.count(a) == expression.count(b) for a, b in ("()", "{}", "[]"))


def test_every_metric_of_the_gateway_is_on_the_dashboard() -> None:
    shown = json.dumps(DASHBOARD)
    families = {
        re.sub(r"_(total|bucket|sum|count|info)$", "", name) for name in SERIES if name.startswith("turngate_")
    }
    assert {family for family in families if family not in shown} == {"turngate_build"}


def test_panels_have_a_place_of_their_own_and_say_what_they_show() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert all(panel["type"] == "row" or panel["description"] for panel in panels)


def test_the_dashboards_variables_and_legends_name_labels_that_exist() -> None:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            assert label in SERIES[metric] | ADDED_BY_PROMETHEUS
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            names = {name for name, _ in METRIC.findall(target["expr"])}
            known = set.union(ADDED_BY_PROMETHEUS, *(SERIES[name] for name in names))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known


def test_alerts_say_how_bad_it_is_what_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "action"}


def test_prometheus_scrapes_the_job_that_the_alerts_name_and_loads_them() -> None:
    assert [job["job_name"] for job in PROMETHEUS["scrape_configs"]] == ["turngate"]
    assert all((DEPLOY / "prometheus" / name).exists() for name in PROMETHEUS["rule_files"])
