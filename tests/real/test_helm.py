"""Laws of the chart: Helm renders it, Kubernetes knows every field, and the gateway accepts its configuration."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from gateway.config import loading
from tests.real import parts

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/turngate"
KUBERNETES = ROOT / "deploy/kubernetes"
VERSIONS = ("1.28", "1.34")
ENGINES = ["vllm://vllm:8000"]
OPEN = {"engines": ENGINES, "listen": {"open": True}}
KEYED = {"engines": ENGINES, "keys": [{"key": "env:TEAM_A_KEY", "tenant": "a"}], "admin": {"key": "env:ADMIN_KEY"}}

VALUES: dict[str, Any] = {
    "open": {"config": OPEN},
    "everything": {
        "config": KEYED | {"batches": {"directory": "/var/lib/turngate"}, "timeouts": {"shutdown_grace_s": 90}},
        "secretName": "turngate-keys",
        "admin": {"enabled": True, "port": 9191},
        "persistence": {"enabled": True, "storageClassName": "fast"},
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "keySecretName": "turngate-keys",
            "keySecretKey": "ADMIN_KEY",
        },
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}},
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "1"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "extraEnv": [{"name": "TURNGATE_LOGGING_LEVEL", "value": "warning"}],
        "imagePullSecrets": [{"name": "registry"}],
    },
    "several": {"config": OPEN, "replicas": 3},
    "manifests": yaml.safe_load((KUBERNETES / "values.yaml").read_text()),
}
REFUSED: Mapping[str, tuple[Any, str]] = {
    "no engine": ({"config": {"listen": {"open": True}}}, "engines"),
    "no key": ({"config": {"engines": ENGINES}}, "listen.open: true"),
    "no admin key": ({"config": OPEN, "admin": {"enabled": True}}, "config.admin.open: true"),
    "no such value": ({"config": OPEN, "replica": 2}, "replica"),
    "one volume of many": (
        {"config": OPEN, "replicas": 2, "persistence": {"enabled": True}},
        "persistence.enabled: false",
    ),
    "no metrics": ({"config": OPEN, "serviceMonitor": {"enabled": True}}, "admin.enabled"),
}


@cache
def rendered(version: str = VERSIONS[-1]) -> dict[str, Any]:
    """By name of the values."""
    parts.require("deploy", parts.DEPLOY_PYTHON)
    asked = {
        "chart": str(CHART),
        "kubernetes": version,
        "values": VALUES | {k: v for k, (v, _) in REFUSED.items()},
    }
    command = [parts.DEPLOY_PYTHON, ROOT / "tests/real/inside/render.py"]
    told = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(told.stdout)
    return answer


def objects(name: str) -> dict[str, Any]:
    return {f"{each['kind']} {each['metadata']['name']}": each for each in rendered()[name]["objects"]}


def pod(name: str) -> Any:
    return objects(name)["Deployment turngate"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VALUES)
def test_helm_and_kubernetes_have_nothing_to_complain_about(name: str, version: str) -> None:
    told = rendered(version)[name]
    assert told.get("error") is None
    assert told["problems"] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_run_is_refused_with_the_remedy(name: str) -> None:
    assert REFUSED[name][1] in rendered()[name]["error"]


@pytest.mark.parametrize("name", VALUES)
def test_the_gateway_accepts_its_configuration_and_its_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_A_KEY", "a")
    monkeypatch.setenv("ADMIN_KEY", "b")
    (container,) = pod(name)["containers"]
    arguments = main.parser().parse_args(container["args"])
    (mount,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "config"]
    assert arguments.config.parent == Path(mount)
    file = tmp_path / arguments.config.name
    file.write_text(objects(name)["ConfigMap turngate"]["data"][file.name])
    settings = loading.load(main.flags(arguments), file, environ={})
    loading.refuse_exposure(settings)
    assert loading.addresses(settings)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports.get("admin") == settings.admin.port
    assert ports["http"] == settings.listen.port
    assert pod(name)["terminationGracePeriodSeconds"] >= settings.timeouts.shutdown_grace_s + 5


@pytest.mark.parametrize("name", VALUES)
def test_services_and_probes_name_ports_and_pods_that_exist(name: str) -> None:
    found = objects(name)
    template = found["Deployment turngate"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    services = [each for each in found.values() if each["kind"] == "Service"]
    assert services
    for service in services:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")} <= ports
    for monitor in (each for each in found.values() if each["kind"] == "ServiceMonitor"):
        chosen = monitor["spec"]["selector"]["matchLabels"].items()
        (watched,) = [each for each in services if chosen <= each["metadata"]["labels"].items()]
        served = {port["name"] for port in watched["spec"]["ports"]}
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= served


@pytest.mark.parametrize("name", VALUES)
def test_the_pod_has_no_rights_that_it_does_not_need(name: str) -> None:
    spec = pod(name)
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert not spec["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_disruption_budget_is_for_several_gateways() -> None:
    assert "PodDisruptionBudget turngate" in objects("several")
    assert "PodDisruptionBudget turngate" not in objects("open")


def test_the_plain_manifests_are_what_the_chart_renders() -> None:
    """`TURNGATE_MANIFESTS=write` writes them anew."""
    texts = [
        text.strip() for name, text in sorted(rendered()["manifests"]["manifests"].items()) if ".yaml" in name
    ]
    head = "# Rendered from deploy/helm/turngate with values.yaml: kubectl apply -n agents -f turngate.yaml\n"
    expected = head + "\n---\n".join(
        text.replace("managed-by: Helm", "managed-by: kubectl") for text in texts if text
    )
    file = KUBERNETES / "turngate.yaml"
    if os.environ.get("TURNGATE_MANIFESTS") == "write":
        file.write_text(expected + "\n")
    assert file.read_text() == expected + "\n", (
        "write it anew: TURNGATE_MANIFESTS=write pytest tests/real/test_helm.py"
    )
