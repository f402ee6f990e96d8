"""Reads the configuration: flags over environment over YAML over defaults. This is the only reader of the file, of
the environment, and of the secrets that both refer to.

Every key has a variable, `TURNGATE_` and its path: `listen.port` is TURNGATE_LISTEN_PORT. Lists and mappings are
written there as YAML; engines also as `a,b`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent, wrap
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from gateway.config.settings import EngineEntry, Section, Settings, help_of
from gateway.core.errors import ConfigError
from gateway.engines.base import EngineAddress, KvEventSource
from gateway.engines.kinds import EMBEDDED, adapter_of, host_urls, parse_address

DEFAULT_FILE = Path("turngate.yaml")
PREFIX = "TURNGATE_"
FILE_VARIABLE = PREFIX + "CONFIG"
BY_REFERENCE = "give a secret by reference, env:NAME or file:/path"


def load(
    flags: Mapping[str, Any] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the effective settings. Raises ConfigError.

    `flags` maps dotted paths to values; text is read as in the environment. Without `file`, TURNGATE_CONFIG names
    the file, else ./turngate.yaml is read if it exists.
    """
    environ = os.environ if environ is None else environ
    chosen = chosen_file(file, environ)
    tree = _read_file(chosen) if chosen else {}
    leaves = dict(leaf_keys())
    origins: dict[str, str] = {}
    for path, info in leaves.items():
        if (text := environ.get(variable(path))) is not None:
            _put(tree, path, _parsed(text, info))
            origins[path] = variable(path)
    for path, value in (flags or {}).items():
        if path not in leaves:
            raise ConfigError(f"--set {path}: no such key{did_you_mean(path, leaves)}")
        _put(tree, path, _parsed(value, leaves[path]) if isinstance(value, str) else value)
        origins[path] = "the command line"
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        where = str(chosen or "configuration")
        raise ConfigError("\n".join(_faults(error, origins, where))) from None


def chosen_file(file: Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that `load` reads. None: it reads none."""
    named = (os.environ if environ is None else environ).get(FILE_VARIABLE)
    chosen = file or (Path(named) if named else None)
    return DEFAULT_FILE if chosen is None and DEFAULT_FILE.exists() else chosen


def import_from_its_folder(file: Path | None) -> None:
    """Make modules that lie beside the configuration importable, such as your tools. Installed ones go first."""
    if file is not None and (folder := str(file.parent.absolute())) not in sys.path:
        sys.path.append(folder)


def leaf_keys() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key that can be set, as a dotted path."""
    for name, info in Settings.model_fields.items():
        if (section := _section(info)) is None:
            yield name, info
        else:
            yield from ((f"{name}.{key}", leaf) for key, leaf in section.model_fields.items())


def variable(path: str) -> str:
    return PREFIX + path.upper().replace(".", "_")


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the TURNGATE_ variables that set nothing, each with the name that was perhaps meant. These are not
    refused, because a container platform may add variables of its own."""
    known = [FILE_VARIABLE, *(variable(path) for path, _ in leaf_keys())]
    names = os.environ if environ is None else environ
    return [n + did_you_mean(n, known) for n in sorted(names) if n.startswith(PREFIX) and n not in known]


def dump(settings: Settings) -> str:
    """Return the effective configuration as YAML, with the help and the variable of every key. Secrets stay
    references."""
    lines = ["# Every key with its value. Flags win over variables, variables over this file.", ""]
    for name, value in settings:
        if isinstance(value, Section):
            keys = [indent(_entry(value, key, f"{name}.{key}"), "  ") for key in type(value).model_fields]
            lines += [f"# {type(value).__doc__}", f"{name}:", *keys, ""]
        else:
            lines += [_entry(settings, name, name), ""]
    return "\n".join(lines)


def secret(reference: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the value behind `env:NAME` or `file:/path`. Raises ConfigError when it is missing or empty. The
    error does not repeat a reference of another form, which may be the secret itself."""
    scheme, _, place = reference.partition(":")
    if scheme not in ("env", "file") or not place:
        raise ConfigError(BY_REFERENCE)
    if scheme == "env":
        value = (os.environ if environ is None else environ).get(place, "")
    else:
        value = _read_text(Path(place))
    if not value.strip():
        raise ConfigError(f"the secret {reference} is missing or empty")
    return value.strip()


def identity_secret(settings: Settings) -> bytes | None:
    """Return the key of all ids; None: each gateway makes its own. Raises ConfigError."""
    reference = settings.identity.secret
    return secret(reference).encode() if reference else None


def refuse_exposure(settings: Settings) -> None:
    """Raises ConfigError when other machines would be served without a key and the configuration does not allow
    that."""
    listen, admin = settings.listen, settings.admin
    if not (listen.is_loopback or listen.open or settings.keys):
        raise ConfigError(
            f"listen.host is {listen.host} and no keys are configured, so any client that reaches this machine"
            " could use the engines: configure keys, or say listen.open: true"
        )
    if admin.port is not None and not (admin.is_loopback or admin.open or admin.key):
        raise ConfigError(
            f"admin.host is {admin.host} and there is no admin.key, so any client that reaches it could see"
            " what all tenants do: configure admin.key, or say admin.open: true"
        )


def refuse_missing(
    settings: Settings,
    addresses: Sequence[EngineAddress],
    is_installed: Callable[[str], bool] = lambda name: find_spec(name) is not None,
) -> None:
    """Raises ConfigError with one line for each optional package that the configuration needs and that is not
    installed."""
    missing = [
        f"{key} needs the package {package}: pip install 'turngate[{extra}]'"
        for key, package, extra in _needed(settings, addresses)
        if not is_installed(package)
    ]
    if missing:
        raise ConfigError("\n".join(missing))


def _needed(settings: Settings, addresses: Sequence[EngineAddress]) -> Iterator[tuple[str, str, str]]:
    """Yield the key of the configuration, the package and the extra."""
    if settings.cluster.redis is not None:
        yield "cluster.redis", "redis", "redis"
    if settings.batches.redis is not None:
        yield "batches.redis", "redis", "redis"
    if settings.tracing.endpoint is not None:
        yield "tracing.endpoint", "opentelemetry", "otel"
    if settings.tools.mcp:
        yield "tools.mcp", "mcp", "mcp"
    if any(address.kv_events for address in addresses):
        yield "engines: kv_events", "zmq", "kvevents"
    for kind in sorted({address.kind for address in addresses}):
        if needed := adapter_of(kind).package:
            yield f"engines: {kind}://", *needed


def addresses(settings: Settings) -> list[EngineAddress]:
    """Return every configured engine, with those of the hosts file last. Names are unique: of embedded engines
    without one, the second is `embedded-2`. An embedded engine has no base URL yet. Raises ConfigError when there
    is no engine."""
    listed = host_urls(_read_text(Path(settings.hosts_file))) if settings.hosts_file else []
    found = [_address(entry) for entry in settings.engines]
    found += [_address(EngineEntry(url=url), f"{settings.hosts_file}: ") for url in listed]
    if not found:
        raise ConfigError(
            "no engine is configured: pass --engine vllm://host:8000, or list engines in turngate.yaml"
            " (to look around without a GPU: --engine embedded)"
        )
    found = list(_numbered(found))
    names = [address.name for address in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"two engines are called {twice[0]}: list it once, or give one of them another `name` in"
            " turngate.yaml, engines: [{url: ..., name: ...}]"
        )
    return found


def _numbered(addresses: Iterable[EngineAddress]) -> Iterator[EngineAddress]:
    """Each `--engine embedded` is an engine of its own, and no flag gives it a name."""
    num_embedded = 0
    for address in addresses:
        is_unnamed = address.kind == EMBEDDED and address.name == EMBEDDED
        num_embedded += is_unnamed
        yield replace(address, name=f"{EMBEDDED}-{num_embedded}") if is_unnamed and num_embedded > 1 else address


def _address(entry: EngineEntry, where: str = "") -> EngineAddress:
    try:
        key = secret(entry.api_key) if entry.api_key else None
        address = parse_address(entry.url, entry.name, key, entry.metrics_urls)
        if key is None and address.base_url == (adapter := adapter_of(address.kind)).service_url:
            address = replace(address, api_key=os.environ.get(adapter.key_variable) or None)
    except ValueError as error:
        raise ConfigError(f"{where}{error}") from None
    if entry.kv_events is None:
        return address
    return replace(address, kv_events=tuple(KvEventSource(one.url, one.replay_url) for one in entry.kv_events))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {path}: {why}") from None


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice, of which YAML's readers drop the first: with it, perhaps, all limits.
    Also a text that nothing can print."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is written twice", key.start_mark)
            if name is not None:
                seen.add(name)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if any("\ud800" <= char <= "\udfff" for char in str(value)):
            raise yaml.constructor.ConstructorError(None, None, "half a surrogate pair", node.start_mark)
        return value


def _loaded(text: str, place: str) -> Any:
    """Return the value of YAML. Raises ConfigError, also for numbers and depths that Python does not read."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{place} is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{place} is nested too deeply") from None


def read_document(path: Path) -> Any:
    """Return the value of a YAML or JSON file. Raises ConfigError."""
    return _loaded(_read_text(path), str(path))


def _read_file(path: Path) -> dict[str, Any]:
    tree = read_document(path)
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{path} must hold keys and values, not a {type(tree).__name__}")
    return {key: value for key, value in (tree or {}).items() if value is not None}


def _parsed(text: str, info: FieldInfo) -> Any:
    """Read text from a variable or a flag. Scalars are left to the schema, which reads `8080` and `true`."""
    is_container = get_origin(info.annotation) in (tuple, dict)
    if is_container and text.lstrip()[:1] in ("[", "{"):
        return _loaded(text, repr(text))
    return None if text == "null" and type(None) in get_args(info.annotation) else text


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{parent}: holds keys, not {tree!r}")
    tree[key] = value


def _section(info: FieldInfo) -> type[Section] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _section_in(annotation: Any) -> type[Section] | None:
    """The section that a value is, or that the entries of a list or mapping are. None: plain values."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for each in get_args(annotation) if (found := _section_in(each)) is not None), None)


def _faults(error: ValidationError, origins: Mapping[str, str], file: str) -> Iterator[str]:
    for fault in error.errors(include_url=False, include_context=False):
        path = ".".join(map(str, fault["loc"]))
        origin = next((o for p, o in origins.items() if f"{path}.".startswith(f"{p}.")), file)
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            *parents, key = fault["loc"]
            message = "no such key" + did_you_mean(str(key), _keys_at(parents))
        elif fault["type"] == "string_pattern_mismatch":  # the value may be the secret itself
            message = BY_REFERENCE
            if path.endswith(".key"):
                message += ", or the hash that `turngate keys` prints"
        elif fault["type"] == "tuple_type":
            message = "write a list, [...] or lines that begin with `- `" + _example_of(fault["loc"])
        yield f"{origin}: {path}: {message}" if path else f"{origin}: {message}"


def _example_of(loc: tuple[int | str, ...]) -> str:
    """Return the example of the help of a key, as the end of a message. Empty: its help has none."""
    section: type[Section] = Settings
    for part in loc[:-1]:
        if part in section.model_fields:
            section = _section_in(section.model_fields[str(part)].annotation) or section
    example = help_of(section).get(str(loc[-1]), "").partition("Example: ")[2]
    return f", such as {loc[-1]}: {' '.join(example.split())}" if example else ""


def _keys_at(loc: list[int | str]) -> list[str]:
    """Names of the keys that are known at a place of the tree. Indices, and keys of mappings, lead to an entry."""
    section: type[BaseModel] = Settings
    for part in loc:
        if part in section.model_fields:
            section = _section_in(section.model_fields[str(part)].annotation) or section
    return list(section.model_fields)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name. Empty: no known name is similar."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _entry(section: Section, key: str, path: str) -> str:
    """One key with its help, the help of the keys that its entries may have, and its value."""
    lines = [part for paragraph in _paragraphs(help_of(type(section))[key]) for part in wrap(paragraph, 110)]
    if (entries := _section_in(type(section).model_fields[key].annotation)) is not None:
        lines += ["Keys of an entry:", *_help_lines(entries, 1)]
    shown = yaml.safe_dump({key: _plain(getattr(section, key))}, sort_keys=False).rstrip()
    return "\n".join([*(f"# {line}" for line in (*lines, variable(path))), shown])


def _help_lines(section: type[Section], depth: int) -> Iterator[str]:
    margin = "  " * depth
    for key, text in help_of(section).items():
        first, *more = _paragraphs(text)
        for paragraph in (f"{margin}{key}: {first}", *(f"{margin}  {each}" for each in more)):
            yield from wrap(paragraph, 110, subsequent_indent=f"{margin}  ")
        if (inner := _section_in(section.model_fields[key].annotation)) is not None:
            yield from _help_lines(inner, depth + 1)


def _paragraphs(text: str) -> list[str]:
    """An example is a paragraph of its own; other lines run on."""
    return text.replace("\nExample:", "\0Example:").replace("\n", " ").split("\0")


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {key: item for key, item in _plain(dict(value)).items() if item not in (None, "", [])}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
