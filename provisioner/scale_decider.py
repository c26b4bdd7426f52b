"""The scale decider: plans a pool's launches, drains and terminations. A pure function.

The rules are those of Determined 0.19's scale decider (agent_rm/provisioner/scaledecider): an
instance may take so long to start, be idle for so long, be disconnected for so long; instances are
launched for pending work, between a minimum and a maximum. It differs where that is known to hurt:

- an instance with work is never terminated: an idle agent first stops taking work, and its instance
  is terminated when the agent is then seen without any; an excess instance finishes what it has;
- a draining instance is no capacity, though it counts against the maximum until it has gone; one
  with an interruption notice is neither, so that its replacement may start at the notice;
- slots that a job may not have are no demand; what runs on an instance with a notice is;
- terminations are limited by a token bucket, launches by the back-off after failures;
- a mark from before a time without passes begins again (draft_plan.py);
- while the API answers no agent nothing is silent, and nothing is launched.
"""

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil

from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
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
    """Plan one pass over a pool."""
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
        # A bucket that was full is full: no reason to write it down again.
        # One from a clock that was ahead is of now, or it would not fill until then.
        fleet = replace(fleet, tokens_ms=min(snapshot.fleet.tokens_ms, snapshot.now_ms))
    changed = tuple(draft.rows[row.id] for row in snapshot.rows if draft.rows[row.id] != row)
    reasons = [*draft.reasons, *(_launch_text(launch) for launch in launches)]
    return ScalePlan(fleet, changed, launches, tuple(draft.disconnected), tuple(reasons))


def _outage_mark(snapshot: FleetSnapshot) -> int:
    """Return when agents last could not reach the API; a mark of a clock that was ahead is of
    now.
    """
    now_ms = snapshot.now_ms
    return now_ms if snapshot.api_down else min(snapshot.fleet.outage_ms, now_ms)


def _disrupt_instances(draft: DraftPlan) -> None:
    """Drain and terminate instances, in this order: drained ones, silent ones, those that the cloud
    advises to leave, idle ones, excess ones.
    """
    for row in draft.rows_in(InstanceState.DRAINING):
        agent = draft.observation(row).agent
        left = agent is not None and agent.idle and not agent.takes_work
        if row.connected_ms is None:
            draft.disconnected.append(row.id)
        if left or row.connected_ms is None:
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
    for row in draft.rows_in(*_ACTIVE, InstanceState.DRAINING):
        # One that never came has had its time to start before it counts as silent.
        is_fresh = row.connected_ms is None
        if row.silent_ms is None or draft.elapsed_ms(row.silent_ms) < SILENT_MS_MAX * (
            not is_fresh
        ):
            continue
        reason = f"its agent has been silent for {SILENT_MS_MAX // MINUTE_MS} min"
        if is_fresh:
            minutes = draft.snapshot.settings.starting_ms_max // MINUTE_MS
            reason = f"its agent has not enrolled for {minutes} min"
        is_fault = row.connected_ms is None and row.notice_ms is None
        if draft.disrupt(row, InstanceState.TERMINATING, reason) and is_fault:
            record_boot_failure(draft, row, f"instance {row.id}: {reason}")


def _drain_for_overdue(draft: DraftPlan, request: OverdueRequest | None) -> None:
    """Drain as many instances of other sizes, those with least work first, as the request that has
    waited too long needs room for.
    """
    size, count = _room_to_make(draft, request)
    if request is None or not count:
        return
    others = [row for row in _connected_capacity_rows(draft) if row.offering.slots != size]
    for row in sorted(others, key=lambda other: _drain_order(draft, other))[:count]:
        reason = f"a request for {request.slots} slots has waited too long and needs its place"
        draft.disrupt(row, InstanceState.DRAINING, reason)


def _drain_order(draft: DraftPlan, row: InstanceRow) -> tuple[int, float, int, str]:
    """The key that sorts those with the least work first, then the dearest, then the oldest."""
    agent = draft.observation(row).agent
    used = agent.used_slots + (not agent.idle) if agent is not None else 0
    return used, -row.offering.price_per_hour, row.launched_ms, row.id


def _room_to_make(draft: DraftPlan, request: OverdueRequest | None) -> tuple[int, int]:
    """The size of instances to make room for, and how many of other sizes are to drain for that."""
    if request is None or draft.snapshot.api_down:
        return 0, 0
    there = Counter(
        offering.slots for offering, count in draft.snapshot.pending for _ in range(count)
    )
    removable = Counter(row.offering.slots for row in _connected_capacity_rows(draft))
    there += removable
    there.update(row.offering.slots for row in _starting_capacity_rows(draft))
    return capacity_to_free(request, there, removable, _instance_bounds(draft))


def _instance_bounds(draft: DraftPlan) -> InstanceBounds:
    """How many more instances the pool may have, now and once those that drain have ended."""
    settings, rows = draft.snapshot.settings, draft.rows.values()
    there = sum(map(_counts_against_max, rows))
    room = settings.max_instances - there - sum(count for _, count in draft.snapshot.pending)
    leaving = sum(_counts_against_max(row) and _is_leaving(row) for row in rows)
    return InstanceBounds(settings.max_instances, max(0, room), leaving)


def _drain_idle(draft: DraftPlan, need: "_Need") -> None:
    """Drain agents without work: those that were idle for too long, and as many others as the
    pool could have done without for as long.
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
    """How many idle instances of each size no pending request fits."""
    snapshot = draft.snapshot
    busy = Counter(row.offering.slots for row in _busy_capacity_rows(draft))
    idle = Counter(row.offering.slots for row in _idle_capacity_rows(draft))
    starting = Counter(row.offering.slots for row in _starting_capacity_rows(draft))
    for offering, count in snapshot.pending:
        starting[offering.slots] += count
    # The room of one that is silent or drains is that of its replacement.
    there = len(_starting_capacity_rows(draft)) + len(_connected_capacity_rows(draft))
    pending = sum(count for _, count in snapshot.pending)
    most = snapshot.settings.max_instances
    bounds = InstanceBounds(most, max(0, most - there - pending))
    if _room_to_make(draft, need.overdue)[1]:
        # Those of its size stay, which are too few as long as others are in the way.
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
    """The sizes of instances that serve none of the waiting requests while the maximum leaves too
    little room for those that would: even the minimum is not held with them.
    """
    if not need.is_short:
        return set()
    most = draft.snapshot.settings.max_instances
    sizes = {row.offering.slots for row in _idle_capacity_rows(draft)}
    return {size for size in sizes if not sizing.needs_instances(need.demand, {size}, most)}


def _mark_spare(draft: DraftPlan) -> None:
    """Mark since when instances are spare; none is while anything waits or starts."""
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
    """Whether the pool has more than the minimum of instances."""
    return len(_capacity_rows(draft)) > draft.snapshot.settings.min_instances


def _keeps_on_demand_base(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether without this instance the share on demand is still what it is to be."""
    left = [
        capacity_row.offering.market
        for capacity_row in _capacity_rows(draft)
        if capacity_row.id != row.id
    ]
    base = ceil(draft.snapshot.settings.on_demand_base * len(left))
    return row.offering.market is Market.SPOT or left.count(Market.ON_DEMAND) >= base


def _disrupt_excess(draft: DraftPlan) -> None:
    """End what exceeds the maximum: instances without work first, of these the newest; busy agents
    finish what they have.
    """
    staying = [row for row in draft.rows_in(*_ACTIVE) if row.notice_ms is None]
    pending = sum(count for _, count in draft.snapshot.pending)
    excess = len(staying) + pending - draft.snapshot.settings.max_instances
    reason = f"the pool has more than {draft.snapshot.settings.max_instances} instances"
    for row in sorted(
        staying, key=lambda item: (_keep_priority(draft, item), -item.launched_ms, item.id)
    ):
        if excess <= 0:
            return
        connected = draft.observation(row).agent is not None
        # One that was connected may be back with its work: it is left to the rule of the silent.
        is_empty = not connected and row.connected_ms is None
        state = InstanceState.TERMINATING if is_empty else InstanceState.DRAINING
        excess -= draft.disrupt(row, state, reason)


def _keep_priority(draft: DraftPlan, row: InstanceRow) -> int:
    observed = draft.observation(row)
    if observed.status is InstanceStatus.PENDING:
        return 0
    if observed.agent is not None:
        return 1 if observed.agent.idle else 4
    return 2 if row.silent_ms is not None else 3


def _is_capacity(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether work can be placed on the instance, now or once it has started."""
    observed = draft.observation(row)
    is_leaving = row.notice_ms is not None or observed.rebalance
    takes_work = observed.agent is None or observed.agent.takes_work
    return row.state in _ACTIVE and not is_leaving and takes_work


def _capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    return [row for row in draft.rows.values() if _is_capacity(draft, row)]


def _idle_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """The instances whose agents are there and have no work."""
    return [row for row in _connected_capacity_rows(draft) if not _is_busy(draft, row)]


def _busy_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """The instances whose agents are there and have work."""
    return [row for row in _connected_capacity_rows(draft) if _is_busy(draft, row)]


def _connected_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    return [row for row in _capacity_rows(draft) if draft.observation(row).agent is not None]


def _starting_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """The instances whose agents will be there: they have not enrolled yet, or their pool has not
    processed the message that they have.
    """
    return [
        row
        for row in _capacity_rows(draft)
        if row.silent_ms is None
        and not draft.observation(row).agent
        and (row.connected_ms is None or draft.observation(row).is_joining)
    ]


def _is_busy(draft: DraftPlan, row: InstanceRow) -> bool:
    agent = draft.observation(row).agent
    return agent is not None and not agent.idle


@dataclass(frozen=True)
class _Need:
    """The need of the waiting requests. `waiting`: all of them; `demand`: those that may have an
    instance now; `most`: the instances that may be launched; `is_short`: that is too few, and
    `lacks_gang` if a request over several gets none for it. `overdue`: the one that has waited too
    long.
    """

    waiting: Demand
    demand: Demand
    order: tuple[Offering, ...]
    on_demand: tuple[Offering, ...]
    launches: tuple[Launch, ...] = ()
    most: int = 0
    is_short: bool = False
    lacks_gang: bool = False
    overdue: OverdueRequest | None = None


def _assess_need(draft: DraftPlan) -> _Need:
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
    """The launches, and why pending work gets none, "" if it does."""
    snapshot, settings, need = draft.snapshot, draft.snapshot.settings, _assess_need(draft)
    if snapshot.api_down:
        # An instance could not enrol, and would end as one that failed to boot.
        is_wanted = need.waiting.has_pending
        return (), "the cluster's API is down, so no instance could reach it" if is_wanted else ""
    pending = [offering for offering, count in snapshot.pending for _ in range(count)]
    there = [row for row in draft.rows.values() if _counts_against_max(row)]
    least = settings.min_instances - len(_capacity_rows(draft)) - len(pending)
    must = any(job.market is Market.ON_DEMAND for job in need.demand.jobs)
    if not need.order and not (must and need.on_demand):
        return (), _no_launch_reason(draft, need.waiting, least)
    if not need.order or need.lacks_gang or _is_minimum_in_the_way(draft, need, least):
        least = 0
    bounds = sizing.LaunchBounds(least, need.most)
    launches = sizing.clamp_launches(need.launches, bounds, (*need.order, *need.on_demand)[0])
    mix = sizing.MarketCounts(
        len(there) + len(pending),
        sum(
            offering.market is Market.ON_DEMAND
            for offering in [*pending, *(row.offering for row in there)]
        ),
    )
    launches = sizing.apply_on_demand_base(launches, settings, need.on_demand, mix)
    launches, probe_reason = offerings.limit_to_probes(launches, draft.health)
    why = _fewer_launches_reason(draft, need.demand, need.is_short) or probe_reason
    if not why and len(need.demand.jobs) < len(need.waiting.jobs):
        why = "waiting for spot instances, since the deadline leaves time for it"
    return launches, why


def _is_minimum_in_the_way(draft: DraftPlan, need: _Need, least: int) -> bool:
    """Whether so many instances for the minimum, of the best offering that is open, would take the
    place of those that a waiting request needs, also while none of these can be had: they would
    have to go again each time that one is tried.
    """
    most = draft.snapshot.settings.max_instances
    sizes = {offering.slots for offering in draft.snapshot.offerings}
    bounds = InstanceBounds(most, most - least)
    return least > 0 and sizing.needs_more_room(need.waiting, sizes, need.order[0].slots, bounds)


def _free_capacity(row: InstanceRow) -> sizing.FreeCapacity:
    slots, zone = row.offering.slots, row.zone or row.offering.zone
    return sizing.FreeCapacity(slots, slots, row.offering.market, zone=zone)


def _counts_against_max(row: InstanceRow) -> bool:
    """Whether an instance counts against the maximum."""
    lives = row.state in _ACTIVE or row.state is InstanceState.DRAINING
    return lives and row.notice_ms is None


def _is_leaving(row: InstanceRow) -> bool:
    """Whether an instance that counts against the maximum drains, or is silent and may be lost."""
    return row.state is InstanceState.DRAINING or row.silent_ms is not None


def _demand_with_replacements(draft: DraftPlan) -> Demand:
    """The pending work, and what runs on instances with a notice: it will be requested again."""
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
    if not (demand.has_pending or least > 0):
        return demand.hold_reason if draft.snapshot.demand.has_pending else ""
    snapshot = draft.snapshot
    told = offerings.unavailability_text(snapshot.offerings, draft.health, snapshot.now_ms)
    return f"no instance can be launched: {told}" if told else "the pool has no offerings"


def _fewer_launches_reason(draft: DraftPlan, demand: Demand, capped: bool) -> str:
    snapshot = draft.snapshot
    if demand.hold_reason and snapshot.demand.has_pending:
        return demand.hold_reason
    most = snapshot.settings.max_instances
    if large := sizing.unservable_sizes(demand, snapshot.offerings, most):
        have = ", ".join(
            f"{offering.name} with {offering.slots}" for offering in snapshot.offerings
        )
        sizes = ", ".join(map(str, large))
        return f"requests for {sizes} slots fit into no {most} instances of one offering: {have}"
    if capped:
        return f"the pool has its {most} instances"
    return ""


def _launch_text(launch: Launch) -> str:
    return f"launch {launch.count} of {launch.offering.name}"
