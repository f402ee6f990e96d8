"""Laws of the command line: quick help, flags as keys, faults without stack traces, a clean stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from tests.deadline import DEADLINE_S


@pytest.fixture(autouse=True)
def _nothing_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def exit_of(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main.main(argv)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_without_a_command_the_help_is_shown_and_the_status_is_that_of_wrong_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main([]) == 2
    assert "turngate demo" in capsys.readouterr().err


def test_help_lists_every_command_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("--help") == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("serve", "engine", "demo", "doctor", "check", "OPENAI_BASE_URL="))


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_takes_what_the_table_says_that_it_gets(name: str) -> None:
    run = import_module(f"gateway.cli.{name}").run
    configured = ["settings"] if main.COMMANDS[name].is_configured else []
    assert list(signature(run).parameters) == ["arguments", *configured]


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(command, "--help") == 0
    assert f"turngate {command}" in capsys.readouterr().out


async def test_help_loads_none_of_the_libraries() -> None:
    heavy = "{'aiohttp', 'pydantic', 'yaml', 'orjson', 'prometheus_client', 'asyncio'}"
    shown = "import sys; from gateway.cli.main import parser; parser([]).format_help()"
    code = f"{shown}; print({heavy} & set(sys.modules))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.decode().strip() == "set()"


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("--version") == 0
    assert capsys.readouterr().out.startswith("turngate ")


@pytest.mark.parametrize("argv", [["sevre"], ["serve", "--set", "novalue"], ["serve", "--nonsense"]])
def test_wrong_arguments_end_with_2(argv: list[str]) -> None:
    assert exit_of(*argv) == 2


def test_flags_are_keys_of_the_configuration() -> None:
    argv = [
        "serve",
        "--engine",
        "vllm://a:1",
        "--engine",
        "vllm://b:1",
        "--port",
        "9",
        "--set",
        "policy.ceiling=0.5",
    ]
    settings = loading.load(main.flags(main.parser().parse_args(argv)), environ={})
    assert [entry.url for entry in settings.engines] == ["vllm://a:1", "vllm://b:1"]
    assert (settings.listen.port, settings.policy.ceiling) == (9, 0.5)


def test_check_says_what_the_configuration_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", "--engine", "sglang://gpu2:30000", "--set", "models.aliases={gpt-*: qwen}"]) == 0
    said = capsys.readouterr().out
    assert "Listens on 127.0.0.1, port 8080" in said
    assert "gpu2:30000: sglang http://gpu2:30000" in said
    assert "gpt-* is qwen" in said


def test_a_module_beside_the_configuration_can_be_imported_from_any_directory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "lies_beside.py").write_text("def search(q: str) -> str:\n    return q\n")
    (folder / "turngate.yaml").write_text('engines: [embedded]\ntools: {use: [{use: "lies_beside:search"}]}\n')
    assert main.main(["check", "--config", "etc/turngate.yaml"]) == 0
    assert "Tools of the gateway: search" in capsys.readouterr().out


def test_check_warns_of_a_variable_that_nothing_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNGATE_POLICY_CIELING", "0.5")
    assert main.main(["check", "--engine", "embedded"]) == 0
    assert "TURNGATE_POLICY_CIELING; did you mean TURNGATE_POLICY_CEILING?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (["check"], "no engine is configured"),
        (["serve"], "no engine is configured"),
        (["serve", "--engine", "embedded", "--host", "0.0.0.0"], "configure keys, or say listen.open"),
        (["check", "--config", "gone.yaml"], "cannot read gone.yaml"),
        (["check", "--engine", "vlm://a:1"], "vlm"),
        (["top", "--key", "sekret"], "give a secret by reference, env:NAME or file:/path"),
        (["check", "--engine", "embedded", "--set", "policy.name=turn"], "did you mean turns?"),
        (["check", "--engine", "embedded", "--set", "policy.name=turn:s"], "No module named 'turn'"),
        (["check", "--engine", "embedded", "--set", "cluster.redis=redis://r:1"], "one `identity.secret`"),
        (["check", "--engine", "embedded", "--set", "identity.secret=env:GONE"], "env:GONE is missing"),
        (["check", "--engine", "embedded", "--set", "admin.key=env:GONE"], "env:GONE is missing"),
        (["check", "--engine", "embedded", "--set", "batches.redis=env:GONE"], "env:GONE is missing"),
        (["serve", "--engine", "embedded", "--workers", "2", "--set", "policy.name=turn"], "did you mean turns?"),
        (["check", "--engine", "embedded", "--set", "listen.prot=1"], "did you mean listen.port?"),
    ],
)
def test_a_wrong_configuration_is_told_in_lines_and_ends_with_2(
    argv: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("turngate: ") for line in lines)
    assert fault in lines[0]


def test_dump_config_prints_the_effective_configuration_and_serves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.main(["serve", "--engine", "vllm://a:1", "--set", "listen.port=9", "--dump-config"]) == 0
    file = tmp_path / "dumped.yaml"
    file.write_text(capsys.readouterr().out)
    expected = Settings.model_validate({"engines": ["vllm://a:1"], "listen": {"port": 9}})
    assert loading.load(file=file, environ={}) == expected


@pytest.mark.parametrize(
    ("argv", "ready"),
    [
        (["engine", "--port", "0"], "turngate serve --engine vllm://127.0.0.1:"),
        (["serve", "--engine", "embedded", "--port", "0"], "OPENAI_BASE_URL=http://127.0.0.1:"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_server_says_how_to_reach_it_and_stops_cleanly(
    argv: list[str], ready: str, number: signal.Signals
) -> None:
    process = await started(*argv)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for line in process.stdout:
                if ready in line.decode():
                    process.send_signal(number)
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    assert b"Traceback" not in errors


async def test_a_port_in_use_is_told_plainly() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with server, asyncio.timeout(DEADLINE_S):
        port = server.sockets[0].getsockname()[1]
        process = await started("engine", "--port", str(port))
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().startswith("turngate: cannot start: ")
    assert str(port) in errors.decode()
    assert "--port takes another" in errors.decode()


async def test_a_log_of_facts_that_cannot_be_opened_is_told_plainly() -> None:
    async with asyncio.timeout(DEADLINE_S):
        process = await started(
            "serve", "--engine", "embedded", "--port", "0", "--set", "logging.facts=/gone/facts"
        )
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"turngate: cannot start: No such file or directory: /gone/facts" in errors


async def test_doctor_says_what_each_engine_is_and_fails_when_one_is_down() -> None:
    async with asyncio.timeout(DEADLINE_S):
        process = await started("doctor", "--engine", "embedded", "--engine", "vllm://127.0.0.1:1")
        said, errors = await process.communicate()
    assert process.returncode == 1
    assert b"DOWN" in said
    assert b"262,144 tokens" in said
    assert errors == b""  # it says all that the log would


async def started(*argv: str) -> asyncio.subprocess.Process:
    """The command in a process of its own, its output piped."""
    code = "import sys; from gateway.cli.main import main; sys.exit(main())"
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, *argv, stdout=pipe, stderr=pipe)


def test_a_hosts_file_and_a_place_for_batches_are_flags(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu1:8000\nsglang://gpu2:30000  # spare\n")
    arguments = main.parser().parse_args(["serve", "--hosts", str(hosts), "--batches", str(tmp_path / "b")])
    settings = loading.load(main.flags(arguments))
    hosts.write_text("gpu1:8000\n")
    assert len(loading.addresses(settings)) == 1
    hosts.write_text("gpu1\n")
    with pytest.raises(ConfigError, match="hosts: engine 'vllm://gpu1'"):
        loading.addresses(settings)
    hosts.write_text("gpu1:8000\nsglang://gpu2:30000  # spare\n")
    assert [address.base_url for address in loading.addresses(settings)] == [
        "http://gpu1:8000",
        "http://gpu2:30000",
    ]
    assert settings.batches.directory == str(tmp_path / "b")
