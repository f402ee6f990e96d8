"""How well synthetic fleets are recognised without any header, by what their clients do to a history.

    python -m benchmarks.clients.fleets

Rows and truth: `tests/sessions/fleets.py`. A fleet has 1, 8 or 64 agents at once and one to three identical
rounds in one gateway; tasks run once or twice at the same time. F1 over pairs of requests: of one session or not;
runs of equal content are interchangeable.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.results import command_parser, write
from tests.sessions.fleet_scores import FleetScore, replay, score
from tests.sessions.fleets import fleet, rows

SIZES = {1: 6, 8: 4, 64: 2}
"""Fleets of each row by the number of agents at once."""


def measure(sizes: dict[int, int]) -> list[dict[str, Any]]:
    result = []
    for row in rows():
        for num_agents, count in sizes.items():
            scores = [score(replay(fleet(row, num_agents, seed))) for seed in range(count)]
            total = sum(scores, FleetScore())
            worst = min(one.f1 for one in scores)
            result.append({"row": row, "agents": num_agents, "f1": total.f1, "worst": worst} | asdict(total))
    return result


def table(result: list[dict[str, Any]]) -> str:
    lines = [
        "What is scored: first lines of `benchmarks/clients/fleets.py`. F1 of all fleets of a row, and of the",
        "worst one. *Wrong*: requests in a session that is mostly another run's. *Parents*: of sub-agents, found",
        "and wrong. *Sides as turns*: side requests taken for turns of an agent.",
        "",
        "| row | agents | requests | runs | sessions | F1 | worst | wrong | parents | sides as turns |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result:
        cells = [row[name] for name in ("row", "agents", "requests", "runs", "sessions")]
        parents = f"{row['found_parents']} of {row['children']}, {row['wrong_parents']}" if row["children"] else ""
        sides = f"{row['side_turns']} of {row['sides']}" if row["sides"] else ""
        cells += [f"{row['f1']:.4f}", f"{row['worst']:.4f}", row["wrong_turns"], parents, sides]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = command_parser(__doc__, __file__)
    options = parser.parse_args()
    result = measure(SIZES)
    text = table(result)
    print(text)
    write(options.results, "fleets", text, result)


if __name__ == "__main__":
    main()
