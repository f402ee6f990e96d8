"""Laws of the terminal view: it fits, it says everything once, and it is readable without colour."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from gateway.api.sessions import SessionPhase
from gateway.cli.screen import COLOURS, SORTS, Screen, gates, gauge, seconds
from gateway.cli.top import ORDERS
from tests.cli.snapshots import session, snapshot


def drawn(
    shown: Any, height: int | None = None, width: int = 80, sort: str = "phase", problem: str = ""
) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height or 24, force_terminal=True, no_color=True)
    console.print(Screen(shown, "http://127.0.0.1:8080", sort, height, problem), end="")
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).splitlines()


@pytest.mark.parametrize("num_sessions", [0, 1, 5, 1_000])
@pytest.mark.parametrize("num_replicas", [0, 1, 40])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10)])
@pytest.mark.parametrize("problem", ["", "nothing answers at http://127.0.0.1:8080"])
def test_a_screen_fills_a_terminal_and_no_more(
    num_sessions: int, num_replicas: int, width: int, height: int, problem: str
) -> None:
    lines = drawn(snapshot(num_sessions, num_replicas), height, width, problem=problem)
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    assert lines[-1].startswith("q quit")


def test_in_80_columns_nothing_that_matters_is_cut() -> None:
    lines = drawn(snapshot(7))
    assert lines[0].startswith("turngate 0.1.0  http://127.0.0.1:8080")
    assert lines[0].endswith("gate: saved 412s, cost 35s")
    assert "20 running  7 waiting (6 for room, 1 for a slot)  33 between turns" in lines[1]
    assert lines[2].split() == ["REPLICA", "RESIDENT", "TOKENS", "SLOTS"]
    assert lines[3].split() == ["gpu1", "############...........|", "500k", "of", "950k", "12/256"]
    assert lines[5].split() == ["0000000000", "d7567c", "waiting:room", "0s", "1", "3.5", "1.0k", "gpu1"]
    assert [line.split()[2].partition(":")[0] for line in lines[5:12]] == list(COLOURS)


@pytest.mark.parametrize(("states", "text"), [
    (["none", "none"], ""),
    (["holds", "none"], "  gate: saved 200s, cost 30s"),
    (["open", "holds"], "  gate open: saved 400s, cost 60s"),
    (["observed", "observed"], "  gate would save 400s, cost 60s"),
])  # fmt: skip
def test_what_the_gates_earned_is_one_line(states: list[str], text: str) -> None:
    assert gates([{"gate": state, "gate_saved_s": 200, "gate_held_s": 30} for state in states]) == text
    assert gates([{"id": "of an older member"}]) == ""


def test_what_does_not_fit_is_counted() -> None:
    assert "994 more sessions" in "\n".join(drawn(snapshot(6, total=1_000)))
    lines = drawn(snapshot(100, 40), height=24)
    shown = sum(line.startswith("0000") for line in lines)
    assert f"{100 - shown} more sessions" in "\n".join(lines)
    assert "and 34 more" in "\n".join(lines)


def test_pages_show_every_session_once_and_start_over() -> None:
    shown = snapshot(40, sessions=[session(number, session=f"0000{number:06}") for number in range(40)])

    def ids(page: int) -> list[str]:
        out = io.StringIO()
        console = Console(file=out, width=80, height=24, no_color=True)
        console.print(Screen(shown, "http://127.0.0.1:8080", "phase", 24, page=page), end="")
        return [line.split()[0] for line in out.getvalue().splitlines() if line.startswith("0000")]

    pages = [ids(page) for page in range(3)]
    seen = [session_id for page in pages for session_id in page]
    assert len(seen) == len(set(seen)) == 40
    assert ids(3) == pages[0]


@pytest.mark.parametrize(
    ("width", "names"), [(69, "SESSION PHASE FOR TURN TOKENS REPLICA"), (49, "SESSION PHASE FOR TURN")]
)
def test_a_narrow_terminal_shows_fewer_columns_whole(width: int, names: str) -> None:
    lines = drawn(snapshot(6), height=24, width=width)
    assert lines[4].split() == names.split()
    assert not any("…" in line for line in lines[4:])


def test_a_pipe_gets_all_of_it() -> None:
    lines = drawn(snapshot(100, 40))
    assert sum(line.startswith("0000") for line in lines) == 100
    assert sum(line.startswith("gpu") for line in lines) == 40


@pytest.mark.parametrize(("sort", "first"), [("phase", 0), ("age", 0), ("turn", 5), ("tokens", 5), ("family", 5)])
def test_a_screen_sorts_by_each_order(sort: str, first: int) -> None:
    lines = drawn(snapshot(6), sort=sort)
    turns = [int(line.split()[4]) for line in lines if line.startswith("0000")]
    assert turns[0] == first + 1
    assert list(SORTS) == list(ORDERS)


def test_the_problem_stands_over_the_last_snapshot() -> None:
    lines = drawn(snapshot(2), height=24, problem="nothing answers at http://127.0.0.1:8080")
    assert lines[0] == "nothing answers at http://127.0.0.1:8080"
    assert any(line.startswith("0000") for line in lines)
    assert drawn(None, height=24, problem="nothing answers")[0] == "nothing answers"


def test_tenants_are_a_column_for_the_operator_alone() -> None:
    named = [session(0, tenant="a-very-long-tenant-name")]
    assert "TENANT" in "\n".join(drawn(snapshot(1, sessions=named)))
    assert "TENANT" not in "\n".join(drawn(snapshot(1)))


def test_replicas_that_are_down_or_of_unknown_size_say_so() -> None:
    shown = snapshot(0, 2)
    shown["replicas"][0]["is_up"] = False
    shown["replicas"][1] |= {"ceiling_tokens": None, "capacity_tokens": None}
    lines = drawn(shown)
    assert lines[3].rstrip().endswith("DOWN")
    assert "500k, size unknown" in lines[4]


def test_every_phase_has_its_colour() -> None:
    assert list(COLOURS) == [phase.value for phase in SessionPhase]


@pytest.mark.parametrize(("value", "text"), [(0.4, "0s"), (599, "599s"), (600, "10m"), (5_400, "1.5h")])
def test_times_are_short(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("used", "text"),
    [(0, "." * 23 + "|"), (50, "#" * 12 + "." * 11 + "|"), (100, "#" * 23 + "|"), (300, "#" * 23 + "|")],
)
def test_the_gauge_shows_the_share_and_the_ceiling(used: int, text: str) -> None:
    assert gauge(used, 96, 100).plain == text


def test_names_of_clients_are_shown_whole_where_there_is_room_and_are_no_markup() -> None:
    named = session(0, agent="[red]opencode", client_session="ses_[/red]" + "i" * 40)
    shown = snapshot(2, sessions=[named, session(1)])
    wide = "\n".join(drawn(shown, width=200))
    assert named["agent"] in wide
    assert named["client_session"] in wide
    narrow = "\n".join(drawn(shown, width=80))
    assert "AGENT" not in narrow
    assert "ses_" not in narrow
    assert "AGENT" not in "\n".join(drawn(snapshot(2), width=200))
