"""What stands between the clients and the engine, and what the clients do themselves, arm by arm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fleet.clients import (
    Client,
    DeclaringClient,
    DynamoSessionClient,
    NamedSessionClient,
    RetryingClient,
    SessionCapClient,
    SlotsClient,
    StrictPriorityClient,
)
from benchmarks.fleet.engines import Engine
from benchmarks.fleet.peers import smg, vllm_router, vllm_router_programs
from benchmarks.fleet.restart import restarted
from gateway.cli.demo_process import command
from gateway.core.transport import Upstream

ANY = ("embedded", "dynamo", "vllm", "sglang")
AS_VLLM = ("embedded", "dynamo", "vllm")
"""Those in front of which a proxy is started that takes them for vLLM."""
DYNAMO = ("dynamo",)


@dataclass(frozen=True, slots=True)
class ArmContext:
    """What an arm's client may need to know of its run."""

    declares_turns: bool
    """Whether even unmodified clients of this fleet say how many turns follow."""
    session_cap: int
    upstream: Upstream
    base_url: str
    model: str


def unmodified(setting: ArmContext) -> Client:
    return DeclaringClient() if setting.declares_turns else Client()


def straight(engine: Engine) -> AbstractAsyncContextManager[str]:
    return nullcontext(engine.base_url)


def gateway(*settings: str) -> Callable[[Engine], AbstractAsyncContextManager[str]]:
    """Turngate in front, with its defaults but for `settings`."""

    @asynccontextmanager
    async def serve(engine: Engine) -> AsyncIterator[str]:
        arguments = ["serve", "--port", "0", "--engine", engine.base_url.replace("http", engine.kind, 1)]
        async with command(
            [*arguments, *(part for setting in settings for part in ("--set", setting))]
        ) as base_url:
            yield base_url

    return serve


def with_capacity(share: float) -> Callable[[Engine], AbstractAsyncContextManager[str]]:
    """Turngate in front, with this share of the cache's real size as its capacity."""
    return lambda engine: gateway(f"policy.capacity_tokens={round(share * engine.capacity_tokens)}")(engine)


@dataclass(frozen=True, slots=True)
class Arm:
    what: str
    """For the report."""
    front: Callable[[Engine], AbstractAsyncContextManager[str]] = straight
    """Lends the base URL that the clients talk to."""
    client: Callable[[ArmContext], Client] = unmodified
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    has_history: bool = False
    """Another fleet of the same family has gone through before."""
    engines: tuple[str, ...] = ANY


ARMS = {
    "straight": Arm("clients call the engine"),
    "passthrough": Arm("Turngate, policy.name=passthrough", gateway("policy.name=passthrough")),
    "fifo": Arm("Turngate, policy.name=fifo", gateway("policy.name=fifo")),
    "request-cap": Arm(
        "Turngate, policy.name=fifo, policy.slots_per_replica=16",
        gateway("policy.name=fifo", "policy.slots_per_replica=16"),
    ),
    "session-cap": Arm(
        "an oracle: clients that together keep at most the best number of sessions alive",
        client=lambda setting: SessionCapClient(setting.session_cap),
    ),
    "turns": Arm("Turngate, default settings", gateway()),
    "observe": Arm("Turngate, policy.name=observe", gateway("policy.name=observe")),
    "turns-capacity-80": Arm("Turngate, policy.capacity_tokens at 80 % of the cache's size", with_capacity(0.8)),
    "turns-capacity-120": Arm("Turngate, policy.capacity_tokens at 120 % of the cache's size", with_capacity(1.2)),
    "turns-least-loaded": Arm(
        "Turngate, placement by fewest running turns",
        gateway("policy.placement=benchmarks.simulation.placement:least_loaded"),
    ),
    "turns-round-robin": Arm(
        "Turngate, placement in turn", gateway("policy.placement=benchmarks.simulation.placement:round_robin")
    ),
    "turns-replaced": Arm(
        "Turngate, learned_file and identity.secret set, replaced 12 s after the start as in a rolling update,"
        " clients that retry",
        restarted(is_killed=False),
        lambda setting: RetryingClient(),
    ),
    "turns-killed": Arm(
        "Turngate, learned_file and identity.secret set, killed and started again 12 s after the start, clients"
        " that retry",
        restarted(is_killed=True),
        lambda setting: RetryingClient(),
    ),
    "turns-declared": Arm(
        "Turngate, default settings, clients that declare their remaining turns",
        gateway(),
        lambda setting: DeclaringClient(),
    ),
    "turns-history": Arm(
        "Turngate, default settings, after another fleet of the family", gateway(), has_history=True
    ),
    "dynamo-priority": Arm(
        "Dynamo's router, queue threshold 0.1, clients that ask for strict priority by turns left",
        client=lambda setting: StrictPriorityClient(),
        engine_options={"router_queue_threshold": 0.1},
        engines=DYNAMO,
    ),
    "dynamo-affinity": Arm(
        "Dynamo's router with session affinity, clients that name their session",
        client=lambda setting: NamedSessionClient("x-dynamo-session-id"),
        engine_options={"session_affinity_ttl_s": 600},
        engines=DYNAMO,
    ),
    "thunderagent": Arm(
        "dynamo.thunderagent_router of Dynamo 1.6.1, clients that name their session and say when it ends",
        client=lambda setting: DynamoSessionClient(setting.upstream, setting.base_url, setting.model),
        engine_options={"thunderagent": ()},
        engines=DYNAMO,
    ),
    "thunderagent-1s": Arm(
        "thunderagent with a scheduler tick of 1 s instead of 5 s",
        client=lambda setting: DynamoSessionClient(setting.upstream, setting.base_url, setting.model),
        engine_options={"thunderagent": ("--scheduler-interval-seconds", "1")},
        engines=DYNAMO,
    ),
    "smg": Arm("smg 1.13.0, policy cache_aware", smg, engines=AS_VLLM),
    "vllm-router": Arm("vllm-router 0.1.17, policy cache_aware", vllm_router, engines=AS_VLLM),
    "vllm-router-programs": Arm(
        "vllm-router with --enable-program-scheduling as it is recommended, with the engine's capacity and costs,"
        " clients that name their session",
        vllm_router_programs,
        client=lambda setting: NamedSessionClient("x-session-id"),
        engines=AS_VLLM,
    ),
    "batch-agent-10": Arm(
        "emulated slot discipline of batch-agent 0.2.0 (most turns done first), its default of 10",
        client=lambda setting: SlotsClient(10),
    ),
    "batch-agent-16": Arm(
        "batch-agent-10 with 16 slots, the best of its settings on base", client=lambda setting: SlotsClient(16)
    ),
}
