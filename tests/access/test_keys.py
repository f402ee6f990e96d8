"""Laws of client keys: only hashes are held, a wrong key has no caller, and each key brings its own rights."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.access.keys import (
    ANONYMOUS,
    MOST_WAITING,
    Access,
    Caller,
    Keys,
    Viewer,
    callers,
    fast,
    hashed,
    is_slow,
    may_use,
    new_key,
    plain_keys,
)
from gateway.access.limits import Quantity
from gateway.cli import main
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError

LONG, SHORT = new_key(), "swordfish"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def of(*entries: dict[str, Any], **sections: Any) -> Settings:
    return Settings.model_validate({"keys": entries, **sections})


@pytest.mark.parametrize("key", [LONG, SHORT], ids=["long", "short"])
async def test_a_hashed_key_is_known_and_any_other_key_is_refused(key: str) -> None:
    keys = Keys(callers(of({"key": hashed(key), "tenant": "a"})))
    for _ in range(2):  # a short one is derived once
        found = await keys.caller(bearer(key))
        assert found is not None
        assert found.tenant == "a"
    for wrong in (key + "x", key[:-1], "", key.upper()):
        assert await keys.caller(bearer(wrong)) is None
    assert await keys.caller({}) is None
    assert await keys.caller({"authorization": f"Basic {key}"}) is None
    assert await keys.caller({"x-api-key": key}) == found


async def test_a_hash_itself_opens_nothing() -> None:
    for key in (LONG, SHORT):
        kept = hashed(key)
        found = Keys(callers(of({"key": kept})))
        assert await found.caller(bearer(kept)) is None


def test_a_short_key_gets_a_salted_slow_hash_and_a_random_one_a_fast_hash() -> None:
    assert hashed(LONG) == hashed(LONG)
    assert is_slow(hashed(SHORT))
    assert hashed(SHORT) != hashed(SHORT)
    assert len({new_key() for _ in range(100)}) == 100


async def test_unknown_keys_do_not_pile_up_before_the_slow_comparison() -> None:
    keys = Keys(callers(of({"key": hashed(SHORT)})))
    lookups = [asyncio.ensure_future(keys.caller(bearer(f"guess{n}"))) for n in range(3 * MOST_WAITING)]
    await asyncio.sleep(0)
    assert sum(task.done() for task in lookups) == 2 * MOST_WAITING
    for task in lookups:
        task.cancel()
    await asyncio.gather(*lookups, return_exceptions=True)
    assert await keys.caller(bearer(SHORT)) is not None


async def test_a_key_that_is_taken_away_while_it_is_compared_stays_away() -> None:
    keys = Keys(callers(of({"key": hashed(SHORT)})))
    lookups = asyncio.ensure_future(keys.caller(bearer(SHORT)))
    await asyncio.sleep(0)
    keys.become(callers(of({"key": hashed(LONG)})))
    assert await lookups is None
    assert await keys.caller(bearer(SHORT)) is None
    assert await keys.caller(bearer(LONG)) is not None


async def test_a_key_that_stays_is_known_also_while_others_change() -> None:
    entry = {"key": hashed(SHORT), "name": "n"}
    keys = Keys(callers(of(entry)))
    lookups = asyncio.ensure_future(keys.caller(bearer(SHORT)))
    await asyncio.sleep(0)
    keys.become(callers(of(entry | {"tenant": "b"}, {"key": hashed(LONG)})))
    found = await lookups
    assert found is not None
    assert found.tenant == "b"
    assert keys.at_once(bearer(SHORT)) == found


async def test_a_reference_may_lead_to_a_key_or_to_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k").write_text(hashed(LONG) + "\n")
    monkeypatch.setenv("PLAIN", "plain")
    entries: list[dict[str, Any]] = [
        {"key": f"file:{tmp_path / 'k'}", "tenant": "a"},
        {"key": "env:PLAIN", "tenant": "b"},
    ]
    keys = Keys(callers(of(*entries)))
    found = [await keys.caller(bearer(key)) for key in (LONG, "plain")]
    assert [caller and caller.tenant for caller in found] == ["a", "b"]
    assert plain_keys(of(*entries)) == {"b": "plain"}
    with pytest.raises(ConfigError, match="hashes of keys only"):
        plain_keys(of(entries[0]))


async def test_no_key_stays_in_memory() -> None:
    keys = Keys(callers(of({"key": hashed(SHORT), "name": "n"})))
    await keys.caller(bearer(SHORT))
    assert SHORT not in repr(vars(keys))


def test_two_entries_never_share_a_key_or_a_name() -> None:
    kept = hashed(LONG)
    for second in ({"key": kept, "name": "other"}, {"key": fast("x"), "name": "one"}):
        with pytest.raises(ConfigError, match="is there twice"):
            callers(of({"key": kept, "name": "one"}, second))


def test_a_budget_in_money_needs_a_price_of_every_model() -> None:
    entry = {"key": fast("x"), "name": "one", "limits": {"budget_cost": 5}}
    with pytest.raises(ConfigError, match=r"one: limits\.budget_cost needs a price of every model"):
        callers(of(entry, prices={"m": {"prompt": 1}}))
    [caller] = callers(of(entry, prices={"*": {"prompt": 1}})).values()
    assert caller.limits is not None
    assert [meter.quantity for meter in caller.limits.meters] == [Quantity.BUDGET_COST]


def test_a_key_written_in_plain_text_is_refused_and_never_repeated(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("keys: [{key: sk-very-secret}]\nadmin: {key: sk-also-secret}")
    with pytest.raises(ConfigError, match="or the hash that `turngate keys` prints") as caught:
        loading.load(file=file, environ={})
    assert "secret" not in str(caught.value).replace("give a secret", "")


def test_models_are_matched_by_name_or_glob() -> None:
    caller = Caller("a", False, models=("m", "Qwen/*"))
    assert [may_use(caller.models, name) for name in ("m", "Qwen/Q3", "m2", "qwen/Q3")] == [
        True,
        True,
        False,
        False,
    ]
    assert may_use(ANONYMOUS.models, "anything")


@pytest.mark.parametrize(("typed", "prefix"), [(LONG, "sha256:"), (SHORT, "scrypt:")], ids=["long", "short"])
async def test_the_command_prints_an_entry_that_opens_for_the_key(
    typed: str, prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed + "\n"))
    assert main.main(["keys", "hash", "--tenant", "a", "--name", "n"]) == 0
    printed = capsys.readouterr().out
    entries = yaml.safe_load(printed)
    assert entries[0]["key"].startswith(prefix)
    assert typed not in printed
    found = await Keys(callers(of(*entries))).caller(bearer(typed))
    assert found is not None
    assert (found.tenant, found.id) == ("a", "n")


async def test_a_new_key_is_shown_once_with_the_entry_that_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["keys", "new"]) == 0
    printed = capsys.readouterr().out
    [key] = [line.removeprefix("# ") for line in printed.splitlines() if line.startswith("# tg-")]
    assert await Keys(callers(of(*yaml.safe_load(printed)))).caller(bearer(key)) is not None


def admitted(settings: Settings) -> Access:
    return Access.of(settings, Keys(callers(settings)))


CLIENT, ADMIN = new_key(), new_key()
KEYS = [{"key": hashed(CLIENT), "tenant": "a"}]
PUBLIC = {"listen": {"host": "0.0.0.0"}}
WITH_KEY = {"admin": {"key": hashed(ADMIN)}}


@pytest.mark.parametrize(
    ("tree", "is_private", "shown", "hidden"),
    [
        ({}, False, {"", CLIENT}, set()),
        ({"keys": KEYS}, False, set(), {"", CLIENT}),
        ({"keys": KEYS, **WITH_KEY}, False, {ADMIN}, {"", CLIENT}),
        ({"keys": KEYS, **PUBLIC}, False, set(), {"", CLIENT}),
        ({"keys": KEYS, **PUBLIC, **WITH_KEY}, False, {ADMIN}, {"", CLIENT}),
        ({**WITH_KEY}, False, {ADMIN}, {""}),
        ({"admin": {"port": 0}}, False, set(), {""}),
        ({"admin": {"port": 0}}, True, {""}, set()),
        ({"keys": KEYS, "admin": {"port": 0, "key": hashed(ADMIN)}}, True, {ADMIN}, {"", CLIENT}),
    ],
)
async def test_metrics_are_shown_to_operators_only(
    tree: dict[str, Any], is_private: bool, shown: set[str], hidden: set[str]
) -> None:
    access = admitted(Settings.model_validate(tree))
    for key in shown | hidden:
        failure = await access.metrics_failure(bearer(key), is_private)
        assert (failure is None) is (key in shown)


async def test_views_are_of_the_own_tenant_and_of_all_for_an_administrator() -> None:
    access = admitted(Settings.model_validate({"keys": KEYS, **WITH_KEY}))
    own, everybody = [await access.viewer(bearer(key), False) for key in (CLIENT, ADMIN)]
    assert isinstance(own, Viewer)
    assert isinstance(everybody, Viewer)
    assert (own.tenant, everybody.tenant) == ("a", None)
    assert not isinstance(await access.viewer({}, False), Viewer)
    assert not isinstance(await access.viewer(bearer(CLIENT), True), Viewer)


@pytest.mark.parametrize(
    ("admin", "is_refused"),
    [
        ({"port": 9000, "host": "0.0.0.0"}, True),
        ({"port": 9000, "host": "0.0.0.0", "open": True}, False),
        ({"port": 9000, "host": "0.0.0.0", "key": "env:ADMIN"}, False),
        ({"port": 9000}, False),
        ({"host": "0.0.0.0"}, False),
    ],
)
def test_an_admin_listener_without_a_key_stays_on_this_machine(admin: dict[str, Any], is_refused: bool) -> None:
    settings = Settings.model_validate({"admin": admin})
    if is_refused:
        with pytest.raises(ConfigError, match=r"say admin\.open"):
            loading.refuse_exposure(settings)
    else:
        loading.refuse_exposure(settings)


def test_tenants_are_counted_and_not_keys() -> None:
    entries = [
        {"key": hashed(f"{tenant}-{number}" * 9), "tenant": tenant} for tenant in "ab" for number in range(2)
    ]
    assert Keys({}).num_tenants == 0
    assert Keys(callers(of(*entries[:2]))).num_tenants == 1
    assert Keys(callers(of(*entries))).num_tenants == 2
