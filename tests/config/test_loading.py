"""Laws of the configuration: precedence, names, faults that say where and what, secrets by reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.access.keys import Caller, callers, fast
from gateway.config import loading
from gateway.config.settings import Policy, Section, Settings, help_of
from gateway.core.errors import ConfigError
from gateway.engines.base import KvEventSource

NOTHING: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _no_file_lies_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str, path: str = "my.yaml") -> Path:
    file = Path(path)
    file.write_text(text)
    return file


def fault_of(text: str = "", flags: dict[str, Any] | None = None, environ: dict[str, str] = NOTHING) -> str:
    with pytest.raises(ConfigError) as caught:
        loading.load(flags, written(text), environ)
    return str(caught.value)


def test_flags_win_over_environment_over_file_over_defaults() -> None:
    file = written("policy: {ceiling: 0.1, max_wait_s: 1, hold_bound_s: 2}")
    environ = {"TURNGATE_POLICY_CEILING": "0.2", "TURNGATE_POLICY_MAX_WAIT_S": "3"}
    policy = loading.load({"policy.ceiling": "0.3"}, file, environ).policy
    assert (policy.ceiling, policy.max_wait_s, policy.hold_bound_s, policy.max_wait_plain_s) == (0.3, 3, 2, 400)


def test_without_any_source_the_defaults_hold() -> None:
    assert loading.load(environ=NOTHING) == Settings()


def test_the_file_in_the_working_directory_is_read_and_a_named_one_wins() -> None:
    written("listen: {port: 1}", "turngate.yaml")
    other = written("listen: {port: 2}", "other.yaml")
    assert loading.load(environ=NOTHING).listen.port == 1
    assert loading.load(environ={"TURNGATE_CONFIG": "other.yaml"}).listen.port == 2
    assert loading.load(file=other, environ={"TURNGATE_CONFIG": "missing.yaml"}).listen.port == 2


@pytest.mark.parametrize("text", ["", "listen:\n", "# nothing\n"])
def test_an_empty_file_or_section_means_the_defaults(text: str) -> None:
    assert loading.load(file=written(text), environ=NOTHING) == Settings()


def test_an_unknown_key_is_an_error_with_its_file_its_path_and_a_suggestion() -> None:
    assert fault_of("listen: {prot: 1}") == "my.yaml: listen.prot: no such key; did you mean port?"
    assert fault_of("polcy: {}") == "my.yaml: polcy: no such key; did you mean policy?"
    assert (
        fault_of("engines: [{url: embedded, nme: x}]") == "my.yaml: engines.0.nme: no such key; did you mean name?"
    )
    assert fault_of(flags={"listen.prt": "1"}) == "--set listen.prt: no such key; did you mean listen.port?"


def test_a_fault_names_the_source_that_holds_it() -> None:
    assert fault_of(environ={"TURNGATE_LISTEN_PORT": "x"}).startswith("TURNGATE_LISTEN_PORT: listen.port: ")
    assert fault_of(flags={"listen.port": "x"}).startswith("the command line: listen.port: ")
    assert fault_of("listen: {port: x}").startswith("my.yaml: listen.port: ")


def test_every_fault_is_told_at_once() -> None:
    assert len(fault_of("{listen: {port: x}, stream: {keep_alive_s: 0}, policy: {ceiling: 2}}").splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [", "my.yaml is not YAML"),
        ("[1]", "my.yaml must hold keys and values, not a list"),
        ("listen: 3", "my.yaml: listen: "),
        ("limits: {messages: " + "9" * 5_000 + "}", "my.yaml is not YAML: "),
        ('models: {aliases: {"\\ud800": m}}', "my.yaml is not YAML: half a surrogate pair"),
        ("a: " + "[" * 3_000 + "]" * 3_000, "my.yaml is nested too deeply"),
    ],
)
def test_a_file_that_is_no_mapping_is_a_fault(text: str, fault: str) -> None:
    assert fault_of(text).startswith(fault)


@pytest.mark.parametrize("text", ["keys: []\nkeys: []", "limits: {tools: 1, messages: 2, tools: 3}"])
def test_a_key_that_is_written_twice_is_a_fault_as_the_first_would_count_for_nothing(text: str) -> None:
    assert "is written twice" in fault_of(text)


def test_keys_may_be_merged_from_another_place() -> None:
    text = "prices: {a: &a {prompt: 1, output: 2}, b: {<<: *a, output: 3}}\nengines: [embedded]"
    prices = loading.load(file=written(text), environ=NOTHING).prices
    assert (prices["b"].prompt, prices["b"].output) == (1, 3)


@pytest.mark.parametrize("window_s", ["1.0e-308", "1.0e+308", ".inf", ".nan"])
@pytest.mark.parametrize("key", ["window_s", "budget_window_s"])
def test_a_window_can_be_counted_in(key: str, window_s: str) -> None:
    text = f"engines: [embedded]\nkeys: [{{key: 'sha256:{'0' * 64}', limits: {{tokens: 5, {key}: {window_s}}}}}]"
    assert f"keys.0.limits.{key}" in fault_of(text)


def test_a_missing_file_is_a_fault() -> None:
    with pytest.raises(ConfigError, match=r"cannot read gone\.yaml"):
        loading.load(file=Path("gone.yaml"), environ=NOTHING)


def test_a_section_that_is_no_mapping_is_a_fault_also_below_a_variable() -> None:
    assert "listen" in fault_of("listen: 3", environ={"TURNGATE_LISTEN_PORT": "1"})


def test_every_key_has_help_and_its_own_variable() -> None:
    leaves = dict(loading.leaf_keys())
    helps = help_of(Settings)
    for name, section in Settings():
        if isinstance(section, Section):
            helps |= {f"{name}.{key}": text for key, text in help_of(type(section)).items()}
    assert [path for path in leaves if not helps.get(path)] == []
    assert len({loading.variable(path) for path in leaves}) == len(leaves)
    assert loading.FILE_VARIABLE not in {loading.variable(path) for path in leaves}


def test_a_section_says_what_it_is_about() -> None:
    sections = [value for _, value in Settings() if isinstance(value, Section)]
    assert all(type(section).__doc__ for section in sections)


def test_variables_hold_lists_and_mappings_as_yaml_and_engines_also_plainly() -> None:
    environ = {
        "TURNGATE_ENGINES": "vllm://a:1, sglang://b:2",
        "TURNGATE_MODELS_ALIASES": "{gpt-*: qwen}",
        "TURNGATE_POLICY_OPTIONS": "{depth: 3}",
        "TURNGATE_POLICY_SLOTS_PER_REPLICA": "null",
        "TURNGATE_LISTEN_OPEN": "true",
    }
    settings = loading.load(environ=environ)
    assert [entry.url for entry in settings.engines] == ["vllm://a:1", "sglang://b:2"]
    assert settings.models.aliases == {"gpt-*": "qwen"}
    assert settings.policy == Policy(options={"depth": 3})
    assert settings.listen.open
    assert [e.name for e in loading.load(environ={"TURNGATE_ENGINES": "[{url: embedded, name: e}]"}).engines] == [
        "e"
    ]


def test_a_variable_that_sets_nothing_is_told_with_the_one_that_was_meant() -> None:
    environ = {"TURNGATE_LISTEN_PROT": "1", "TURNGATE_CONFIG": "x", "TURNGATE_LISTEN_PORT": "1", "HOME": "/"}
    assert loading.unknown_variables(environ) == ["TURNGATE_LISTEN_PROT; did you mean TURNGATE_LISTEN_PORT?"]


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().listen.port = 1


def test_what_is_dumped_reads_back_as_the_same_settings() -> None:
    flags = {
        "engines": [{"url": "vllm://a:1", "api_key": "env:KEY"}, "embedded"],
        "keys": "[{key: file:/run/key, tenant: a, may_prioritise: true}]",
        "models.aliases": "{'*': qwen}",
        "policy.slots_per_replica": "8",
    }
    settings = loading.load(flags, environ=NOTHING)
    assert loading.load(file=written(loading.dump(settings)), environ=NOTHING) == settings


def test_a_dump_names_every_key_with_its_variable() -> None:
    dumped = loading.dump(Settings())
    tree = yaml.safe_load(dumped)
    assert all(loading.variable(path) in dumped for path, _ in loading.leaf_keys())
    assert list(tree) == list(Settings.model_fields)


def test_a_secret_in_plain_text_is_refused_and_never_repeated() -> None:
    fault = fault_of("engines: [{url: embedded, api_key: sk-very-secret}]")
    assert "env:NAME" in fault
    assert "sk-very" not in fault


def test_a_secret_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file\n")
    assert loading.secret("env:KEY", {"KEY": "from-env"}) == "from-env"
    assert loading.secret(f"file:{tmp_path}/key") == "from-file"
    for reference in ("env:GONE", f"file:{tmp_path}/gone"):
        with pytest.raises(ConfigError, match=r"gone|GONE"):
            loading.secret(reference, NOTHING)


def test_a_client_key_stands_for_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_A", "sk-a")
    settings = loading.load({"keys": "[{key: env:TEAM_A, tenant: a, may_prioritise: true}]"}, environ=NOTHING)
    assert callers(settings) == {fast("sk-a"): Caller("a", True, id="env:TEAM_A")}


@pytest.mark.parametrize(
    ("flags", "is_refused"),
    [
        ({"listen.host": "0.0.0.0"}, True),
        ({"listen.host": "gateway.example"}, True),
        ({"listen.host": "0.0.0.0", "listen.open": "true"}, False),
        ({"listen.host": "0.0.0.0", "keys": "[{key: env:K}]"}, False),
        ({"listen.host": "127.0.0.2"}, False),
        ({"listen.host": "::1"}, False),
        ({"listen.host": "localhost"}, False),
    ],
)
def test_without_keys_only_this_machine_is_served_unless_told_otherwise(
    flags: dict[str, str], is_refused: bool
) -> None:
    settings = loading.load(flags, environ=NOTHING)
    if is_refused:
        with pytest.raises(ConfigError, match="configure keys, or say listen"):
            loading.refuse_exposure(settings)
    else:
        loading.refuse_exposure(settings)


def test_engines_come_from_the_list_and_then_from_the_hosts_file() -> None:
    hosts = written("sglang://b:2  # the second\n\n# none\nopenai+https://c/v1\n", "hosts")
    settings = loading.load({"engines": ["vllm://a:1"], "hosts_file": str(hosts)}, environ=NOTHING)
    found = [(address.kind, address.base_url, address.name) for address in loading.addresses(settings)]
    assert found == [
        ("vllm", "http://a:1", "a:1"),
        ("sglang", "http://b:2", "b:2"),
        ("openai", "https://c", "c"),
    ]


@pytest.mark.parametrize(
    ("engines", "fault"),
    [
        ([], "no engine is configured"),
        (["vllm://a:1", "vllm://a:1"], "two engines are called a:1: list it once, or give .*name"),
        (["https://a:1"], "vllm\\+https://a:1"),
        (["vlm://a:1"], "vlm"),
        ([{"url": "vllm://a:1", "api_key": "env:TURNGATE_TEST_UNSET"}], "env:TURNGATE_TEST_UNSET is missing"),
    ],
)
def test_engines_that_cannot_be_meant_are_refused(engines: list[Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        loading.addresses(loading.load({"engines": engines}, environ=NOTHING))


def test_embedded_engines_without_a_name_are_numbered() -> None:
    settings = loading.load({"engines": ["embedded", "embedded", {"url": "embedded", "name": "own"}]}, environ={})
    assert [address.name for address in loading.addresses(settings)] == ["embedded", "embedded-2", "own"]


def test_a_rented_service_gets_the_key_of_its_own_tools_and_no_other_address_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-2")
    monkeypatch.setenv("TURNGATE_TEST_KEY", "sk-3")
    own = {"url": "openai://", "name": "own", "api_key": "env:TURNGATE_TEST_KEY"}
    engines = ["openai://", "anthropic://", own, "openai://h:1", "openai+https://api.example.com", "vllm://a:1"]
    found = loading.addresses(loading.load({"engines": engines}, environ=NOTHING))
    assert [address.api_key for address in found] == ["sk-1", "sk-2", "sk-3", None, None, None]


def test_a_mapping_in_the_place_of_a_list_is_told_with_an_example() -> None:
    told = fault_of('engines: {url: "vllm://a:1"}')
    assert told.startswith("my.yaml: engines: write a list, ")
    assert "such as engines: [vllm://127.0.0.1:8000, " in told
    assert "such as use: [{use: " in fault_of("tools: {use: {search: {}}}")


def test_a_secret_that_is_given_as_itself_is_refused_and_not_repeated() -> None:
    for text in ("hush", "hush:x", "env:"):
        with pytest.raises(ConfigError, match="give a secret by reference, env:NAME or file:/path") as caught:
            loading.secret(text)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("cluster: {redis: 'hush:6379'}", "write redis://host:6379/0, or env:NAME"),
        ("tracing: {endpoint: 'hush:4318'}", "write http://collector:4318"),
        ("tools: {mcp: [{name: a, command: [b], approval: hush}]}", "write never, always, or"),
        ("tools: {mcp: [{name: hush}]}", "tools.mcp.0: give either its `command` or its `url`"),
    ],
)
def test_what_is_written_in_another_form_is_told_how_to_write_it_and_not_repeated(text: str, how: str) -> None:
    fault = fault_of(text)
    assert how in fault
    assert "hush" not in fault


def test_kv_events_are_urls_or_objects_and_another_kind_of_address_is_refused() -> None:
    text = (
        'engines: [{url: "vllm://a:1", kv_events: ["tcp://*:5557", {url: "tcp://a:1", replay_url: "tcp://a:2"}]}]'
    )
    (address,) = loading.addresses(loading.load(file=written(text), environ=NOTHING))
    assert address.kv_events == (KvEventSource("tcp://*:5557"), KvEventSource("tcp://a:1", "tcp://a:2"))
    assert "kv_events" in fault_of('engines: [{url: "vllm://a:1", kv_events: "http://a:1"}]')
    assert "write tcp://host:5557" in fault_of('engines: [{url: "vllm://a:1", kv_events: ["http://a:1"]}]')
    assert "no such key" in fault_of('engines: [{url: "vllm://a:1", kv_events: [{uri: "tcp://a:1"}]}]')
