"""A snapshot as a gateway with a small fleet serves it."""

from __future__ import annotations

from typing import Any

PHASES = ("waiting", "queued", "prefill", "decode", "tool", "lease", "idle")


def session(number: int, **changes: Any) -> dict[str, Any]:
    phase = PHASES[number % len(PHASES)]
    row = {
        "session": f"{number:016x}",
        "family": "d7567c19a6ade160",
        "kind": "agent",
        "phase": phase,
        "phase_s": 7.0 * number,
        "turn": number + 1,
        "expected_turns": 3.5,
        "replica": "gpu1",
        "is_resident": True,
        "prompt_tokens": 1_000 * (number + 1),
        "model": "m",
        "age_s": 1_000.0 - number,
    }
    return row | ({"waits_for": "residency"} if phase == "waiting" else {}) | changes


def snapshot(num_sessions: int = 6, num_replicas: int = 1, **changes: Any) -> dict[str, Any]:
    replicas = [
        {
            "id": f"gpu{number}",
            "is_up": True,
            "slots": 256,
            "slots_used": 12,
            "residency_tokens": 500_000,
            "ceiling_tokens": 950_000,
            "capacity_tokens": 1_000_000,
            "gate": "holds",
            "gate_held_s": 35,
            "gate_saved_s": 412,
        }
        for number in range(1, num_replicas + 1)
    ]
    made = {
        "version": "0.1.0",
        "at": 1_763_725_000.0,
        "offset": 0,
        "replicas": replicas,
        "states": {"waiting": 7, "running": 20, "idle": 33},
        "waiting": {"residency": 6, "slot": 1},
        "families": 3,
        "total": num_sessions,
        "sessions": [session(number) for number in range(num_sessions)],
        "turns": [],
    }
    return made | changes
