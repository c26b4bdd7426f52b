"""Fleet snapshots for the scale decider. Defaults cause neither launches nor drains."""

from collections import Counter
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
    ConnectedAgent,
    Demand,
    FleetSnapshot,
    InstanceStatus,
    JobDemand,
    ObservedInstance,
    ProvisionerSettings,
    ScalePlan,
)
from provisioner.scale_decider import plan_scaling

NOW_MS = 100_000_000
MINUTE_MS = 60_000

BIG = Offering("big/a/on_demand", "big", "a", Market.ON_DEMAND, 8, 8.0)
SMALL = Offering("small/a/on_demand", "small", "a", Market.ON_DEMAND, 4, 4.0)
SPOT = Offering("small/a/spot", "small", "a", Market.SPOT, 4, 1.0)
SPOT_B = Offering("small/b/spot", "small", "b", Market.SPOT, 4, 1.0)

IDLE = ConnectedAgent(idle=True)
BUSY = ConnectedAgent(idle=False, work=(4,))
DRAINED = ConnectedAgent(idle=True, takes_work=False, is_closed=True)
DRAINING = ConnectedAgent(idle=False, takes_work=False, is_closed=True)


def job_demand(*sizes: int, room: int | None = None) -> JobDemand:
    """Return a job with a request of each size and a limit of `room` further slots."""
    return JobDemand({size: sizes.count(size) for size in sizes}, room)


def instance(name: str, **fields: Any) -> InstanceRow:
    """Return a running 4-slot instance that was launched an hour ago; `fields` replace values."""
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


def starting_instance(name: str, minutes: float = 1, **fields: Any) -> InstanceRow:
    """Return an instance that was launched `minutes` ago and has not connected."""
    launched_ms = NOW_MS - int(minutes * MINUTE_MS)
    given = {"state": InstanceState.STARTING, "launched_ms": launched_ms, "connected_ms": None}
    return instance(name, **(given | fields))


def idle_instance(name: str, minutes: float, **fields: Any) -> InstanceRow:
    """Return an instance that has been idle for `minutes`."""
    return instance(name, idle_ms=NOW_MS - int(minutes * MINUTE_MS), **fields)


def running_with(agent: ConnectedAgent | None = BUSY, **fields: Any) -> ObservedInstance:
    """Return the observation of a RUNNING instance with this agent."""
    return ObservedInstance(InstanceStatus.RUNNING, agent, **fields)


def cloud_lists(
    status: InstanceStatus | None, agent: ConnectedAgent | None = None
) -> ObservedInstance:
    """Return the observation of an instance with this status in the cloud's list."""
    return ObservedInstance(status, agent)


def fleet_snapshot(
    instances: Iterable[tuple[InstanceRow, ObservedInstance]] = (),
    *jobs: JobDemand,
    demand: Demand | None = None,
    offerings: tuple[Offering, ...] = (SMALL,),
    health: Mapping[str, OfferingHealth] | None = None,
    pending: tuple[tuple[Offering, int], ...] = (),
    fleet: FleetRow | None = None,
    draw: float = 0.5,
    api_down: bool = False,
    **settings: Any,
) -> FleetSnapshot:
    """Return a snapshot of instances with their observations, jobs and pool settings."""
    pairs = tuple(instances)
    given: dict[str, Any] = {"kind": "fake", "max_instances": 10} | settings
    row = fleet or FleetRow("p", passed_ms=NOW_MS - 5_000)
    if health is not None:
        row = replace(row, health=health)
    return FleetSnapshot(
        settings=ProvisionerSettings(**given),
        offerings=offerings,
        demand=demand or Demand(jobs),
        fleet=row,
        rows=tuple(instance_row for instance_row, _ in pairs),
        observed={instance_row.id: observation for instance_row, observation in pairs},
        pending=pending,
        now_ms=NOW_MS,
        random=lambda: draw,
        api_down=api_down,
    )


def scale_plan(*arguments: Any, **settings: Any) -> ScalePlan:
    """Return the plan for the fleet that `fleet_snapshot` returns for these arguments."""
    return plan_scaling(fleet_snapshot(*arguments, **settings))


def launch_counts(plan: ScalePlan) -> dict[str, int]:
    """Return the number of launched instances by offering name."""
    counts: Counter[str] = Counter()
    for launch in plan.launches:
        counts[launch.offering.name] += launch.count
    return dict(counts)


def state_changes(plan: ScalePlan) -> dict[str, str]:
    """Return the new states of instances that drain, terminate or have ended."""
    live = (InstanceState.STARTING, InstanceState.RUNNING)
    return {row.id: str(row.state) for row in plan.changed_rows if row.state not in live}
