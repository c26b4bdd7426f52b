"""Situations for decisions, with everything that a test does not speak of left calm."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from control_plane.fleet.records import (
    FleetRow,
    InstanceRow,
    InstanceState,
    Market,
    Offering,
    OfferingHealth,
)
from provisioner.model import (
    AgentSeen,
    Demand,
    InstanceStatus,
    JobDemand,
    ProvisionerSettings,
    ScalePlan,
    Seen,
    Situation,
)

NOW_MS = 100_000_000
MINUTE_MS = 60_000

BIG = Offering("big/a/on_demand", "big", "a", Market.ON_DEMAND, 8, 8.0)
SMALL = Offering("small/a/on_demand", "small", "a", Market.ON_DEMAND, 4, 4.0)
SPOT = Offering("small/a/spot", "small", "a", Market.SPOT, 4, 1.0)
SPOT_B = Offering("small/b/spot", "small", "b", Market.SPOT, 4, 1.0)

IDLE = AgentSeen(idle=True)
BUSY = AgentSeen(idle=False, used_slots=4)
DRAINED = AgentSeen(idle=True, takes_work=False)


def waiting(*sizes: int, room: int | None = None) -> JobDemand:
    """A job with one request of each size."""
    return JobDemand({size: sizes.count(size) for size in sizes}, room)


def instance(name: str, **fields: Any) -> InstanceRow:
    """One whose agent connected, launched an hour ago."""
    given: dict[str, Any] = {
        "id": name,
        "pool": "p",
        "offering": SMALL,
        "state": InstanceState.RUNNING,
        "launched_ms": NOW_MS - 60 * MINUTE_MS,
        "intent": f"of-{name}",
        "connected_ms": NOW_MS - 59 * MINUTE_MS,
    }
    return InstanceRow(**(given | fields))


def starting(name: str, minutes: float = 1, **fields: Any) -> InstanceRow:
    """One launched so long ago, whose agent is not there yet."""
    launched_ms = NOW_MS - int(minutes * MINUTE_MS)
    given = {"state": InstanceState.STARTING, "launched_ms": launched_ms, "connected_ms": None}
    return instance(name, **(given | fields))


def idle(name: str, minutes: float, **fields: Any) -> InstanceRow:
    """One that was first seen idle so long ago."""
    return instance(name, idle_ms=NOW_MS - int(minutes * MINUTE_MS), **fields)


def up(agent: AgentSeen | None = BUSY, **fields: Any) -> Seen:
    """It runs, and its agent is seen so."""
    return Seen(InstanceStatus.RUNNING, agent, **fields)


def down(status: InstanceStatus | None, agent: AgentSeen | None = None) -> Seen:
    """The cloud says so of it."""
    return Seen(status, agent)


def situation(
    instances: Iterable[tuple[InstanceRow, Seen]] = (),
    *jobs: JobDemand,
    demand: Demand | None = None,
    offerings: tuple[Offering, ...] = (SMALL,),
    health: Mapping[str, OfferingHealth] | None = None,
    pending: tuple[tuple[Offering, int], ...] = (),
    fleet: FleetRow | None = None,
    draw: float = 0.5,
    **settings: Any,
) -> Situation:
    pairs = tuple(instances)
    given: dict[str, Any] = {"kind": "fake", "max_instances": 10} | settings
    row = fleet or FleetRow("p", passed_ms=NOW_MS - 5_000)
    if health is not None:
        row = replace(row, health=health)
    return Situation(
        settings=ProvisionerSettings(**given),
        offerings=offerings,
        demand=demand or Demand(jobs),
        fleet=row,
        rows=tuple(one for one, _ in pairs),
        seen={one.id: seen for one, seen in pairs},
        pending=pending,
        now_ms=NOW_MS,
        draw=lambda: draw,
    )


def launches(plan: ScalePlan) -> dict[str, int]:
    """By offering, how many are launched."""
    return {launch.offering.name: launch.count for launch in plan.launches}


def moves(plan: ScalePlan) -> dict[str, str]:
    """By instance, the state it changes to; those whose marks alone change are left out."""
    calm = (InstanceState.STARTING, InstanceState.RUNNING)
    return {row.id: str(row.state) for row in plan.changed if row.state not in calm}
