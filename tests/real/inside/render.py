"""Renders and lints the chart with Helm's own engine, and holds the outcome against Kubernetes' schemas.

Standard input: {"chart": path, "kubernetes": version, "values": {name: values}}. Standard output, for each name:
{"manifests": texts by template, "objects": [...], "problems": [...]}, or {"error": what Helm says}.
"""

import json
import sys
from typing import Any

import kubernetes_validate
import yaml
from helm_python import Chart, HelmError, lint

FOREIGN = {"ServiceMonitor"}
"""Kinds that an operator brings: Kubernetes has no schema of them."""
ERROR = 3


def rendered(path: str, version: str, values: dict[str, Any]) -> dict[str, Any]:
    try:
        manifests = Chart.load(path).render(values, name="turngate", namespace="agents")
    except HelmError as error:
        return {"error": str(error)}
    texts = [text for name, text in manifests.items() if name.endswith(".yaml")]
    objects = [found for text in texts for found in yaml.safe_load_all(text) if found]
    found = lint(path, values, strict=True, kube_version=f"v{version}.0")["messages"]
    problems = [f"{each['path']}: {each['error']}" for each in found if each["severity"] == ERROR]
    for each in objects:
        if each["kind"] not in FOREIGN:
            problems += complaints(each, version)
    return {"manifests": manifests, "objects": objects, "problems": problems}


def complaints(found: dict[str, Any], version: str) -> list[str]:
    """Unknown fields are faults too."""
    try:
        kubernetes_validate.validate(found, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{found['kind']}: {error.message}"]
    return []


def main() -> None:
    asked = json.load(sys.stdin)
    path, version = asked["chart"], asked["kubernetes"]
    print(json.dumps({name: rendered(path, version, values) for name, values in asked["values"].items()}))


if __name__ == "__main__":
    main()
