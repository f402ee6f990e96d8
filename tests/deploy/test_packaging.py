"""Containers, unit and example configuration run commands and set keys that exist."""

from __future__ import annotations

import configparser
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from gateway.cli import main
from gateway.config import loading
from gateway.config.settings import EngineEntry, Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
INSTRUCTIONS = {
    *["FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"],
}


def dockerfile() -> list[tuple[str, str]]:
    """Instructions with their arguments, comments left out and continued lines joined."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def arguments_of(name: str) -> list[str]:
    return [rest for word, rest in dockerfile() if word == name]


IMAGE_ENVIRONMENT = dict(re.findall(r"\b(TURNGATE_\w+)=(\S+)", " ".join(arguments_of("ENV"))))


def listed(text: str) -> list[str]:
    """The JSON form of CMD, ENTRYPOINT and HEALTHCHECK."""
    words: list[str] = json.loads(text)
    return words


def test_the_dockerfile_holds_known_instructions_and_copies_files_that_exist() -> None:
    assert {word for word, _ in dockerfile()} <= INSTRUCTIONS
    sources = [source for rest in arguments_of("COPY") if "--from" not in rest for source in rest.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_image_does_not_run_as_root() -> None:
    assert arguments_of("USER") == ["10001"]
    words = [word for word, _ in dockerfile()]
    assert words.index("USER") < words.index("ENTRYPOINT")


def test_the_image_runs_a_command_that_exists() -> None:
    entry, command = listed(arguments_of("ENTRYPOINT")[0]), listed(arguments_of("CMD")[0])
    assert entry == ["turngate"]
    main.parser().parse_args(command)


def test_the_healthcheck_is_python_that_compiles() -> None:
    python, flag, code = listed(arguments_of("HEALTHCHECK")[0].partition("CMD ")[2])
    assert (python, flag) == ("python", "-c")
    compile(code, "healthcheck", "exec")
    assert "/health" in code


def test_variables_that_are_set_exist() -> None:
    in_compose = [name for service in OURS.values() for name in service.get("environment", {})]
    known = {loading.variable(path) for path, _ in loading.leaf_keys()}
    assert {*IMAGE_ENVIRONMENT, *in_compose} <= known


@pytest.mark.parametrize("name", OURS)
def test_compose_runs_commands_that_exist_with_a_valid_configuration(name: str) -> None:
    service = OURS[name]
    arguments = main.parser().parse_args(service["command"])
    environ = {"TURNGATE_LISTEN_HOST": "0.0.0.0", "TURNGATE_LISTEN_OPEN": "true"}
    environ |= service.get("environment", {})
    settings = loading.load(main.flags(arguments), environ=environ)
    if arguments.command == "serve":
        assert loading.addresses(settings)


def test_compose_publishes_on_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_mounts_files_that_exist_and_waits_for_services_that_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            assert (DEPLOY / volume.split(":")[0]).exists()
        assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_what_is_scraped_and_proxied_is_a_service_of_compose() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    targets = [
        target for job in scrape["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    ]
    assert {target.split(":")[0] for target in targets} <= set(SERVICES)
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert [each["url"] for each in source["datasources"]] == ["http://prometheus:9090"]


def test_grafana_finds_the_dashboard_where_compose_puts_it() -> None:
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/turngate.yaml").read_text())["providers"][
        0
    ]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in mounted
    assert home.startswith(provider["options"]["path"])


def test_the_unit_runs_commands_that_exist_and_leaves_time_to_finish() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "turngate.service")
    service = unit["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        program, *argv = shlex.split(service[key])
        assert program.endswith("/bin/turngate")
        main.parser().parse_args(argv)
    assert int(service["TimeoutStopSec"]) > Settings().timeouts.shutdown_grace_s
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_example_configuration_is_what_the_command_dumps() -> None:
    settings = Settings(engines=(EngineEntry(url="vllm://127.0.0.1:8000"),))
    assert (DEPLOY / "turngate.yaml").read_text() == loading.dump(settings), (
        "write it anew: turngate check --engine vllm://127.0.0.1:8000 --dump-config > deploy/turngate.yaml"
    )


def test_the_example_configuration_passes_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", "--config", str(DEPLOY / "turngate.yaml")]) == 0
    assert "vllm http://127.0.0.1:8000" in capsys.readouterr().out


def test_ci_and_make_name_targets_and_modules_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    called = re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert {"lint", "test", "test-real"} <= set(called) <= targets
    modules = re.findall(r"python -m ([a-z_]+\.[a-z_.]+)", makefile)
    assert [module for module in modules if find_spec(module) is None] == []


def test_ci_is_an_executable_that_stops_at_the_first_failure() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert "set -euo pipefail" in (ROOT / ".ci/run").read_text()


@pytest.mark.skipif(which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_has_nothing_to_complain_about(tmp_path: Path) -> None:
    """The program that it looks for is a stand-in."""
    unit = tmp_path / "turngate.service"
    unit.write_text((DEPLOY / "turngate.service").read_text().replace("/opt/turngate/bin/turngate", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def test_the_plain_manifests_run_a_valid_configuration() -> None:
    """That they are what the chart renders, and that Kubernetes knows every field: tests/real/test_helm.py."""
    text = (DEPLOY / "kubernetes/turngate.yaml").read_text()
    objects = {each["kind"]: each for each in yaml.safe_load_all(text)}
    (file,) = objects["ConfigMap"]["data"].values()
    settings = Settings.model_validate(yaml.safe_load(file))
    loading.refuse_exposure(settings)
    assert loading.addresses(settings)
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    main.parser().parse_args(container["args"])


def test_the_wheel_says_its_types_its_readers_and_its_pythons() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = [name.removesuffix("*") for name in pyproject["tool"]["setuptools"]["packages"]["find"]["include"]]
    assert [name for name in packages if not (ROOT / name / "py.typed").exists()] == []
    assert pyproject["tool"]["setuptools"]["package-data"]["*"] == ["py.typed"]
    assert {"readme", "urls"} == set(pyproject["project"]["dynamic"])
    classifiers = pyproject["project"]["classifiers"]
    assert classifiers == sorted(classifiers)
    assert {"Typing :: Typed", *(f"Programming Language :: Python :: 3.{n}" for n in (11, 12, 13))} <= {
        *classifiers
    }


@pytest.mark.parametrize("url", ["", "https://code.example/turngate"])
def test_the_description_on_a_package_index_has_no_relative_link(url: str) -> None:
    """The address of the repository is the publisher's, in TURNGATE_URL."""
    made = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    text = made["long_description"]((ROOT / "README.md").read_text(), url)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert ("](https://code.example/turngate/blob/main/docs/engines.md" in text) == bool(url)
    assert ("![" in text) == bool(url)
    assert all(address.startswith(url) for address in made["project_urls"](url).values())
    assert bool(made["project_urls"](url)) == bool(url)


def test_another_distribution_that_owns_the_package_is_warned_about_with_the_remedy(tmp_path: Path) -> None:
    rival = tmp_path / "batch_agent-0.2.0.dist-info"
    rival.mkdir()
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: batch-agent\nVersion: 0.2.0\n")
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for code in (
        "import batch_agent",
        "from gateway.cli.main import main; main(['check', '--engine', 'embedded'])",
    ):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
        assert "batch-agent 0.2.0 is installed beside turngate" in done.stderr
        assert "pip uninstall -y batch-agent && pip install --force-reinstall --no-deps turngate" in done.stderr


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((DEPLOY / "helm/turngate/Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
