"""The launches that waiting requests need, and the drains that make room. Pure."""

from collections import Counter
from dataclasses import dataclass, replace

from control_plane.fleet.records import InstanceRow, Offering
from provisioner import markets, offerings, sizing
from provisioner.draft_plan import DraftPlan
from provisioner.fleet_capacity import (
    ACTIVE,
    busy_capacity_rows,
    connected_capacity_rows,
    idle_capacity_rows,
    instance_bounds,
    starting_capacity_rows,
)
from provisioner.model import Demand, JobDemand, Launch
from provisioner.overdue_requests import (
    OverdueRequest,
    RoomToMake,
    capacity_to_free,
    find_overdue,
)


@dataclass(frozen=True)
class LaunchNeed:
    """The waiting requests and the necessary launches."""

    waiting: Demand
    """All waiting requests, including replacements for work on instances with a notice."""
    demand: Demand
    """The waiting requests without jobs that wait for spot capacity."""
    order: tuple[Offering, ...]
    """The offerings that may be launched, the best first."""
    on_demand: tuple[Offering, ...]
    """The on-demand offerings without a back-off, also if `order` lacks them."""
    launches: tuple[Launch, ...] = ()
    """The wanted launches, before they are limited to `most` instances."""
    most: int = 0
    """The number of instances that the pool's maximum still allows."""
    is_short: bool = False
    """Whether the maximum is too low for the wanted launches."""
    lacks_gang: bool = False
    """Whether the maximum is too low for `overdue` or for a request on several instances."""
    overdue: OverdueRequest | None = None
    """The first request that has waited too long and can be served; None without one."""


def assess_need(draft: DraftPlan) -> LaunchNeed:
    """Return the launches that the waiting requests need, and the requests; the draft is unchanged.

    The waiting requests are the pool's pending work and the work on instances with a notice. A
    demand with a hold reason has no waiting requests. The pool's minimum adds no launches here.
    Only offerings without a back-off are launched. Jobs that wait for spot capacity get no
    launches. While drains will make room for an overdue request that gets nothing now, no request
    gets launches. Requests on single instances and zero-slot requests may exceed `most` of the
    result. While agents cannot reach the cluster's API, launches are computed too, but without
    drains for the overdue request.
    """
    snapshot, settings = draft.snapshot, draft.snapshot.settings
    usable = offerings.usable_offerings(settings, snapshot.offerings, draft.health, snapshot.now_ms)
    order, on_demand = usable.order, usable.on_demand
    able = tuple(dict.fromkeys((*order, *on_demand)))
    waiting = demand_with_replacements(draft)
    demand = markets.assign_markets(waiting, snapshot.offerings, able, snapshot.now_ms)
    overdue = find_overdue(demand, order, on_demand, settings.max_instances)
    bounds = instance_bounds(draft)
    still_to_drain = room_to_make(draft, overdue).drains
    bounds = replace(bounds, draining=bounds.draining + still_to_drain)
    launches, lacks_gang = sizing.launches_for_demand(
        demand, order, _capacity_for_requests(draft), bounds, on_demand, overdue
    )
    is_short = lacks_gang or sum(launch.count for launch in launches) > bounds.room
    return LaunchNeed(
        waiting, demand, order, on_demand, launches, bounds.room, is_short, lacks_gang, overdue
    )


def _capacity_for_requests(draft: DraftPlan) -> list[sizing.FreeCapacity]:
    """Return the capacity that waiting requests may use: a new record of each usable instance.

    - Starting instances, and instances of open launches: all slots free, not connected.
    - Idle instances: all slots free, connected.
    - Busy instances: no slot free, connected, with work. Their free slots do not count, because the
      scheduler has already offered them to all waiting requests.

    Instances that drain, refuse work or are announced to end are left out. So are instances with a
    silent agent, or with an agent that was connected before and is not connected now.
    """
    pending = [offering for offering, count in draft.snapshot.pending for _ in range(count)]
    return [
        *(_free_capacity(row) for row in starting_capacity_rows(draft)),
        *(
            sizing.FreeCapacity(
                offering.slots,
                offering.slots,
                offering.market,
                zone=offering.zone,
                instance_type=offering.instance_type,
            )
            for offering in pending
        ),
        *(replace(_free_capacity(row), is_connected=True) for row in idle_capacity_rows(draft)),
        *(
            replace(_free_capacity(row), slots=0, is_connected=True, has_work=True)
            for row in busy_capacity_rows(draft)
        ),
    ]


def room_to_make(draft: DraftPlan, request: OverdueRequest | None) -> RoomToMake:
    """Return the drains that make room for the overdue request; the draft is unchanged.

    Return no drains without a request, without a need for drains, or while the API is down. Return
    no drains either if draining all instances that may drain would not suffice. Only connected
    instances that accept work may drain, busy instances included. Starting instances and open
    launches count as capacity.
    """
    if request is None or draft.snapshot.api_down:
        return RoomToMake()
    capacity = Counter(
        offering.slots for offering, count in draft.snapshot.pending for _ in range(count)
    )
    removable = Counter(row.offering.slots for row in connected_capacity_rows(draft))
    capacity += removable
    capacity.update(row.offering.slots for row in starting_capacity_rows(draft))
    return capacity_to_free(request, capacity, removable, instance_bounds(draft))


def demand_with_replacements(draft: DraftPlan) -> Demand:
    """Return the pool's pending work, and the work on instances with a notice as a further job.

    If the demand has a hold reason, return a demand with the hold reason alone. The new job has no
    limit, market or deadline, and no zero-slot work. Only starting and running instances with a
    connected agent count, not draining ones. Without work on them, return the pool's demand
    unchanged.
    """
    demand = draft.snapshot.demand
    if demand.hold_reason:
        return Demand(hold_reason=demand.hold_reason)
    given_notice = (row for row in draft.rows_in(*ACTIVE) if row.notice_ms is not None)
    agents = (draft.observation(row).agent for row in given_notice)
    sizes = Counter(slots for agent in agents if agent is not None for slots in agent.work if slots)
    if not sizes:
        return demand
    return replace(demand, jobs=(*demand.jobs, JobDemand(sizes)))


def _free_capacity(row: InstanceRow) -> sizing.FreeCapacity:
    """Return an instance's capacity with all slots free, not connected and without work.

    The actual work and agent are ignored. The zone is the instance's, or else the offering's.
    """
    slots, zone = row.offering.slots, row.zone or row.offering.zone
    return sizing.FreeCapacity(
        slots,
        slots,
        row.offering.market,
        zone=zone,
        agent=row.id,
        instance_type=row.offering.instance_type,
    )
