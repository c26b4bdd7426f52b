"""The scale decider, which plans a pool's launches, drains and terminations. Pure.

The rules are those of Determined 0.19's scale decider (agent_rm/provisioner/scaledecider). Limits
apply to the times that an instance may start, be idle and be disconnected. Instances are launched
for pending work, between a minimum and a maximum. The differences to Determined:

- An instance with work is never terminated. An idle or excess instance drains: its agent takes no
  new work, and the instance is terminated after the agent has no work left.
- A draining instance takes no work, but counts against the maximum. An instance with an
  interruption notice does neither, so that its replacement can start at the notice.
- Work on an instance with a notice is demand. Requests beyond a job's `max_slots` are not.
- A token bucket limits terminations, and the back-off after failures limits launches.
- A time without passes restarts all marks (draft_plan.py).
- During an outage of the API, no agent counts as silent and nothing is launched.
"""

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil

from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from detcloud.shared.plurals import count_text
from provisioner import consolidation, markets, offerings, sizing
from provisioner.draft_plan import DraftPlan
from provisioner.model import (
    MINUTE_MS,
    Demand,
    FleetSnapshot,
    InstanceStatus,
    JobDemand,
    Launch,
    ScalePlan,
)
from provisioner.observations import apply_observation, record_boot_failure
from provisioner.overdue_requests import OverdueRequest, capacity_to_free, find_overdue
from provisioner.request_shapes import InstanceBounds

SILENT_MS_MAX = 10 * MINUTE_MS

_ACTIVE = frozenset({InstanceState.STARTING, InstanceState.RUNNING})


def plan_scaling(snapshot: FleetSnapshot) -> ScalePlan:
    """Return the plan of a pass over a pool: fleet row, changed instances and launches."""
    draft = DraftPlan(snapshot)
    for row in snapshot.rows:
        apply_observation(draft, row)
    _disrupt_instances(draft)
    launches, wait_reason = _plan_launches(draft)
    fleet = replace(
        snapshot.fleet,
        health={
            name: offering_health
            for name, offering_health in draft.health.items()
            if offering_health != offerings.FRESH
        },
        tokens=draft.tokens,
        tokens_ms=snapshot.now_ms,
        waits=wait_reason,
        spare_ms=draft.spare_ms,
        outage_ms=_outage_mark(snapshot),
    )
    if not draft.tokens_used and snapshot.fleet.tokens >= draft.tokens:
        # The bucket was and is full: keep its time, so that the row need not be written again.
        # A time in the future, from a clock that was ahead, would stop the refill until then.
        fleet = replace(fleet, tokens_ms=min(snapshot.fleet.tokens_ms, snapshot.now_ms))
    changed = tuple(draft.rows[row.id] for row in snapshot.rows if draft.rows[row.id] != row)
    launch_texts = [f"launch {launch.count} of {launch.offering.name}" for launch in launches]
    reasons = [*draft.reasons, *launch_texts]
    return ScalePlan(fleet, changed, launches, tuple(draft.disconnected), tuple(reasons))


def _outage_mark(snapshot: FleetSnapshot) -> int:
    """Return the last time at which agents could not reach the API, at most the present time."""
    now_ms = snapshot.now_ms
    return now_ms if snapshot.api_down else min(snapshot.fleet.outage_ms, now_ms)


def _disrupt_instances(draft: DraftPlan) -> None:
    """Terminate drained and silent instances, then drain instances that should leave.

    Instances drain in this order: with a rebalance recommendation, in the way of the overdue
    request, idle for too long or spare, in excess of the maximum. Each one uses up a token.
    """
    for row in draft.rows_in(InstanceState.DRAINING):
        agent = draft.observation(row).agent
        is_drained = agent is not None and agent.idle and not agent.takes_work
        if row.connected_ms is None:
            draft.disconnected.append(row.id)
        if is_drained or row.connected_ms is None:
            draft.set_state(row, InstanceState.TERMINATING, "it has no work left")
    _terminate_silent(draft)
    for row in draft.rows_in(*_ACTIVE):
        if draft.observation(row).rebalance and row.notice_ms is None:
            draft.disrupt(row, InstanceState.DRAINING, "the cloud recommended replacing it")
    need = _assess_need(draft)
    _drain_for_overdue(draft, need.overdue)
    _drain_idle(draft, need)
    _disrupt_excess(draft)


def _terminate_silent(draft: DraftPlan) -> None:
    """Terminate active and draining instances whose agents were silent for SILENT_MS_MAX.

    Also terminate instances whose agents did not enrol within `starting_ms_max`, and record a
    failed boot unless an interruption was announced. Without a token, an instance stays.
    """
    for row in draft.rows_in(*_ACTIVE, InstanceState.DRAINING):
        never_connected = row.connected_ms is None
        # The silence of an agent that never connected begins only after the starting period.
        limit_ms = 0 if never_connected else SILENT_MS_MAX
        if row.silent_ms is None or draft.elapsed_ms(row.silent_ms) < limit_ms:
            continue
        reason = f"its agent has been silent for {SILENT_MS_MAX // MINUTE_MS} min"
        if never_connected:
            minutes = draft.snapshot.settings.starting_ms_max // MINUTE_MS
            reason = f"its agent has not enrolled for {minutes} min"
        is_fault = never_connected and row.notice_ms is None
        if draft.disrupt(row, InstanceState.TERMINATING, reason) and is_fault:
            record_boot_failure(draft, row, f"instance {row.id}: {reason}")


def _drain_for_overdue(draft: DraftPlan, request: OverdueRequest | None) -> None:
    """Drain the instances of other sizes that must make room for the overdue request."""
    size, count = _room_to_make(draft, request)
    if request is None or not count:
        return
    others = [row for row in _connected_capacity_rows(draft) if row.offering.slots != size]
    for row in sorted(others, key=lambda other: _drain_order(draft, other))[:count]:
        wanted = count_text(request.slots, "slot")
        reason = f"a request for {wanted} has waited too long and needs its place"
        draft.disrupt(row, InstanceState.DRAINING, reason)


def _drain_order(draft: DraftPlan, row: InstanceRow) -> tuple[int, float, int, str]:
    """Return a sort key: the least work first, then the most expensive, then the oldest."""
    agent = draft.observation(row).agent
    used = agent.used_slots + (not agent.idle) if agent is not None else 0
    return used, -row.offering.price_per_hour, row.launched_ms, row.id


def _room_to_make(draft: DraftPlan, request: OverdueRequest | None) -> tuple[int, int]:
    """Return the instance size to make room for, and how many instances of other sizes to drain.

    Return (0, 0) without a request, if no drain is needed or would help, or if the API is down.
    """
    if request is None or draft.snapshot.api_down:
        return 0, 0
    capacity = Counter(
        offering.slots for offering, count in draft.snapshot.pending for _ in range(count)
    )
    removable = Counter(row.offering.slots for row in _connected_capacity_rows(draft))
    capacity += removable
    capacity.update(row.offering.slots for row in _starting_capacity_rows(draft))
    return capacity_to_free(request, capacity, removable, _instance_bounds(draft))


def _instance_bounds(draft: DraftPlan) -> InstanceBounds:
    """Return the pool's maximum, the room for launches, and the number of leaving instances."""
    settings, rows = draft.snapshot.settings, draft.rows.values()
    existing = sum(map(_counts_against_max, rows))
    room = settings.max_instances - existing - sum(count for _, count in draft.snapshot.pending)
    leaving = sum(_counts_against_max(row) and _is_leaving(row) for row in rows)
    return InstanceBounds(settings.max_instances, max(0, room), leaving)


def _drain_idle(draft: DraftPlan, need: "_Need") -> None:
    """Drain instances without work that no pending request fits, the most expensive first.

    An instance drains if it was idle for `idle_ms_max`, or if its size had a spare instance for
    that long. The minimum stays, unless its instances are in the way of waiting requests.
    """
    idle_ms_max = draft.snapshot.settings.idle_ms_max
    unneeded, in_the_way = _count_unneeded_idle(draft, need), _sizes_in_the_way(draft, need)
    _mark_spare(draft)
    idle = (row for row in draft.rows_in(*_ACTIVE) if row.idle_ms is not None)
    for row in sorted(
        idle, key=lambda item: (-item.offering.price_per_hour, item.idle_ms or 0, item.id)
    ):
        size, counts = row.offering.slots, _is_capacity(draft, row)
        spare_ms = draft.elapsed_ms(next(iter(draft.spare_ms.get(size, ())), None))
        reason = f"it was idle for {draft.elapsed_ms(row.idle_ms) // 1000} s"
        if draft.elapsed_ms(row.idle_ms) < idle_ms_max:
            if not counts or spare_ms < idle_ms_max or not _keeps_on_demand_base(draft, row):
                continue
            reason = f"fewer instances were enough for {spare_ms // 1000} s, and it has no work"
        may_go = _may_shrink(draft) or size in in_the_way
        if counts and not (may_go and unneeded[size] > 0):
            continue
        if draft.disrupt(row, InstanceState.DRAINING, reason) and counts:
            unneeded[size] -= 1
            draft.spare_ms = consolidation.marks_after_end(draft.spare_ms, size)


def _count_unneeded_idle(draft: DraftPlan, need: "_Need") -> Counter[int]:
    """Count the idle instances by size that no pending request will use.

    All counts are 0 while instances must drain for the overdue request.
    """
    snapshot = draft.snapshot
    busy = Counter(row.offering.slots for row in _busy_capacity_rows(draft))
    idle = Counter(row.offering.slots for row in _idle_capacity_rows(draft))
    starting = Counter(row.offering.slots for row in _starting_capacity_rows(draft))
    for offering, count in snapshot.pending:
        starting[offering.slots] += count
    # Silent and draining instances count as room, since replacements will follow.
    existing = len(_starting_capacity_rows(draft)) + len(_connected_capacity_rows(draft))
    pending = sum(count for _, count in snapshot.pending)
    most = snapshot.settings.max_instances
    bounds = InstanceBounds(most, max(0, most - existing - pending))
    if _room_to_make(draft, need.overdue)[1]:
        # The overdue request needs all idle instances of the wanted size.
        return Counter()
    demand = snapshot.demand
    return Counter(
        {
            size: count
            - sizing.count_kept_idle(demand, size, count, busy[size], starting[size], bounds)
            for size, count in idle.items()
        }
    )


def _sizes_in_the_way(draft: DraftPlan, need: "_Need") -> set[int]:
    """Return the sizes of idle instances that serve no waiting request, if some request lacks room.

    Instances of these sizes may drain even below the pool's minimum.
    """
    if not need.is_short:
        return set()
    most = draft.snapshot.settings.max_instances
    sizes = {row.offering.slots for row in _idle_capacity_rows(draft)}
    return {size for size in sizes if not sizing.needs_instances(need.demand, {size}, most)}


def _mark_spare(draft: DraftPlan) -> None:
    """Update the draft's marks of spare instances.

    No instance is spare while a servable request waits or an instance starts or is disconnected.
    """
    snapshot, rows = draft.snapshot, _capacity_rows(draft)
    agents = [(row.offering.slots, draft.observation(row).agent) for row in rows]
    connected = [(size, agent) for size, agent in agents if agent is not None]
    sizes = {*(offering.slots for offering in snapshot.offerings), *(size for size, _ in agents)}
    waits = sizing.needs_instances(
        _demand_with_replacements(draft), sizes, snapshot.settings.max_instances
    )
    is_quiet = not waits and not snapshot.pending and len(connected) == len(agents)
    counts = consolidation.count_spare(connected if is_quiet else ())
    draft.spare_ms = consolidation.updated_marks(snapshot.fleet.spare_ms, counts, snapshot.now_ms)


def _may_shrink(draft: DraftPlan) -> bool:
    """Whether more instances than the minimum take work."""
    return len(_capacity_rows(draft)) > draft.snapshot.settings.min_instances


def _keeps_on_demand_base(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether the pool keeps the on-demand share without this instance."""
    left = [
        capacity_row.offering.market
        for capacity_row in _capacity_rows(draft)
        if capacity_row.id != row.id
    ]
    base = ceil(draft.snapshot.settings.on_demand_base * len(left))
    return row.offering.market is Market.SPOT or left.count(Market.ON_DEMAND) >= base


def _disrupt_excess(draft: DraftPlan) -> None:
    """Drain excess instances by `_keep_priority`, then by age, the newest first.

    Terminate excess instances that never connected.
    """
    staying = [row for row in draft.rows_in(*_ACTIVE) if row.notice_ms is None]
    pending = sum(count for _, count in draft.snapshot.pending)
    excess = len(staying) + pending - draft.snapshot.settings.max_instances
    limit = count_text(draft.snapshot.settings.max_instances, "instance")
    reason = f"the pool has more than {limit}"
    for row in sorted(
        staying, key=lambda item: (_keep_priority(draft, item), -item.launched_ms, item.id)
    ):
        if excess <= 0:
            return
        connected = draft.observation(row).agent is not None
        # A disconnected agent may return with work, so `_terminate_silent` decides on the end.
        is_empty = not connected and row.connected_ms is None
        state = InstanceState.TERMINATING if is_empty else InstanceState.DRAINING
        excess -= draft.disrupt(row, state, reason)


def _keep_priority(draft: DraftPlan, row: InstanceRow) -> int:
    """Return a priority: unfilled spot requests leave first, instances with work last."""
    observed = draft.observation(row)
    if observed.status is InstanceStatus.PENDING:
        return 0
    if observed.agent is not None:
        return 1 if observed.agent.idle else 4
    return 2 if row.silent_ms is not None else 3


def _is_capacity(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether an instance starts or runs, accepts work, and has no announced interruption."""
    observed = draft.observation(row)
    is_leaving = row.notice_ms is not None or observed.rebalance
    takes_work = observed.agent is None or observed.agent.takes_work
    return row.state in _ACTIVE and not is_leaving and takes_work


def _capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the starting and running instances that accept work and will not be interrupted."""
    return [row for row in draft.rows.values() if _is_capacity(draft, row)]


def _idle_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the instances of `_capacity_rows` with a connected agent without work."""
    return [row for row in _connected_capacity_rows(draft) if not _is_busy(draft, row)]


def _busy_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the instances of `_capacity_rows` with a connected agent that has work."""
    return [row for row in _connected_capacity_rows(draft) if _is_busy(draft, row)]


def _connected_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the instances of `_capacity_rows` with a connected agent."""
    return [row for row in _capacity_rows(draft) if draft.observation(row).agent is not None]


def _starting_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the instances with agents that will connect: not enrolled or joining, not silent."""
    return [
        row
        for row in _capacity_rows(draft)
        if row.silent_ms is None
        and not draft.observation(row).agent
        and (row.connected_ms is None or draft.observation(row).is_joining)
    ]


def _is_busy(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether the instance has a connected agent with work."""
    agent = draft.observation(row).agent
    return agent is not None and not agent.idle


@dataclass(frozen=True)
class _Need:
    """The waiting requests and the necessary launches."""

    waiting: Demand
    """All waiting requests, including replacements for work on instances with a notice."""
    demand: Demand
    """The waiting requests without jobs that wait for spot capacity."""
    order: tuple[Offering, ...]
    """The offerings that may be launched, the best first."""
    on_demand: tuple[Offering, ...]
    launches: tuple[Launch, ...] = ()
    """The wanted launches, before they are limited to `most` instances."""
    most: int = 0
    is_short: bool = False
    """Whether the maximum is too low for the wanted launches."""
    lacks_gang: bool = False
    """Whether the maximum is too low for a gang or the overdue request."""
    overdue: OverdueRequest | None = None


def _assess_need(draft: DraftPlan) -> _Need:
    """Compute the launches that the waiting requests need; the draft is unchanged."""
    snapshot, settings = draft.snapshot, draft.snapshot.settings
    order, on_demand = offerings.usable_offerings(
        settings, snapshot.offerings, draft.health, snapshot.now_ms
    )
    able = tuple(dict.fromkeys((*order, *on_demand)))
    waiting = _demand_with_replacements(draft)
    demand = markets.assign_markets(waiting, snapshot.offerings, able, snapshot.now_ms)
    pending = [offering for offering, count in snapshot.pending for _ in range(count)]
    capacity = [
        *(_free_capacity(row) for row in _starting_capacity_rows(draft)),
        *(
            sizing.FreeCapacity(offering.slots, offering.slots, offering.market, zone=offering.zone)
            for offering in pending
        ),
        *(replace(_free_capacity(row), is_connected=True) for row in _idle_capacity_rows(draft)),
        *(
            replace(_free_capacity(row), slots=0, is_connected=True, has_work=True)
            for row in _busy_capacity_rows(draft)
        ),
    ]
    overdue = find_overdue(demand, order, on_demand, settings.max_instances)
    bounds = _instance_bounds(draft)
    still_to_drain = _room_to_make(draft, overdue)[1]
    bounds = replace(bounds, draining=bounds.draining + still_to_drain)
    launches, lacks_gang = sizing.launches_for_demand(
        demand, order, capacity, bounds, on_demand, overdue
    )
    is_short = lacks_gang or sum(launch.count for launch in launches) > bounds.room
    return _Need(
        waiting, demand, order, on_demand, launches, bounds.room, is_short, lacks_gang, overdue
    )


def _plan_launches(draft: DraftPlan) -> tuple[tuple[Launch, ...], str]:
    """Return the launches, and why pending work gets too few instances, for users, or ""."""
    snapshot, settings, need = draft.snapshot, draft.snapshot.settings, _assess_need(draft)
    if snapshot.api_down:
        # A new instance could not enrol, and would end as a failed boot.
        is_wanted = need.waiting.has_pending
        return (), "the cluster's API is down, so no instance could reach it" if is_wanted else ""
    pending = [offering for offering, count in snapshot.pending for _ in range(count)]
    existing = [row for row in draft.rows.values() if _counts_against_max(row)]
    least = settings.min_instances - len(_capacity_rows(draft)) - len(pending)
    needs_on_demand = any(job.market is Market.ON_DEMAND for job in need.demand.jobs)
    if not need.order and not (needs_on_demand and need.on_demand):
        return (), _no_launch_reason(draft, need.waiting, least)
    if not need.order or need.lacks_gang or _is_minimum_in_the_way(draft, need, least):
        least = 0
    bounds = sizing.LaunchBounds(least, need.most)
    launches = sizing.clamp_launches(need.launches, bounds, (*need.order, *need.on_demand)[0])
    mix = sizing.MarketCounts(
        len(existing) + len(pending),
        sum(
            offering.market is Market.ON_DEMAND
            for offering in [*pending, *(row.offering for row in existing)]
        ),
    )
    launches = sizing.apply_on_demand_base(launches, settings, need.on_demand, mix)
    launches, probe_reason = offerings.limit_to_probes(launches, draft.health)
    why = _fewer_launches_reason(draft, need.demand, need.is_short) or probe_reason
    if not why and len(need.demand.jobs) < len(need.waiting.jobs):
        why = "waiting for spot instances, since the deadline leaves time for it"
    return launches, why


def _is_minimum_in_the_way(draft: DraftPlan, need: _Need, least: int) -> bool:
    """Whether `least` instances of the best offering would use up room that a request needs.

    A request counts if only other sizes, also in back-off, can serve it, and if it needs more than
    `max_instances - least` instances. Present instances do not matter. False if `least` <= 0.
    """
    most = draft.snapshot.settings.max_instances
    sizes = {offering.slots for offering in draft.snapshot.offerings}
    bounds = InstanceBounds(most, most - least)
    return least > 0 and sizing.needs_more_room(need.waiting, sizes, need.order[0].slots, bounds)


def _free_capacity(row: InstanceRow) -> sizing.FreeCapacity:
    """Return the capacity of an instance without work and without a connected agent."""
    slots, zone = row.offering.slots, row.zone or row.offering.zone
    return sizing.FreeCapacity(slots, slots, row.offering.market, zone=zone)


def _counts_against_max(row: InstanceRow) -> bool:
    """Whether an instance is starting, running or draining, without an interruption notice."""
    is_live = row.state in _ACTIVE or row.state is InstanceState.DRAINING
    return is_live and row.notice_ms is None


def _is_leaving(row: InstanceRow) -> bool:
    """Whether the instance drains, or has a silent agent that may be lost."""
    return row.state is InstanceState.DRAINING or row.silent_ms is not None


def _demand_with_replacements(draft: DraftPlan) -> Demand:
    """Return the pending work and the work on instances with a notice, or only a hold reason."""
    demand = draft.snapshot.demand
    if demand.hold_reason:
        return Demand(hold_reason=demand.hold_reason)
    given_notice = (row for row in draft.rows_in(*_ACTIVE) if row.notice_ms is not None)
    agents = (draft.observation(row).agent for row in given_notice)
    sizes = Counter(slots for agent in agents if agent is not None for slots in agent.work if slots)
    if not sizes:
        return demand
    return replace(demand, jobs=(*demand.jobs, JobDemand(sizes)))


def _no_launch_reason(draft: DraftPlan, demand: Demand, least: int) -> str:
    """Return why no offering can be launched, for users; "" if no instance is wanted."""
    if not (demand.has_pending or least > 0):
        return demand.hold_reason if draft.snapshot.demand.has_pending else ""
    snapshot = draft.snapshot
    text = offerings.unavailability_text(snapshot.offerings, draft.health, snapshot.now_ms)
    return f"no instance can be launched: {text}" if text else "the pool has no offerings"


def _fewer_launches_reason(draft: DraftPlan, demand: Demand, capped: bool) -> str:
    """Return why pending work gets too few instances, for users, or ""."""
    snapshot = draft.snapshot
    if demand.hold_reason and snapshot.demand.has_pending:
        return demand.hold_reason
    most = snapshot.settings.max_instances
    if large := sizing.unservable_sizes(demand, snapshot.offerings, most):
        have = ", ".join(
            f"{offering.name} with {offering.slots}" for offering in snapshot.offerings
        )
        sizes = ", ".join(map(str, large))
        instances = count_text(most, "instance")
        return f"requests for {sizes} slots do not fit into {instances} of one offering: {have}"
    if capped:
        return f"the pool has {count_text(most, 'instance')}, its maximum"
    return ""
