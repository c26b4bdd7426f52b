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
- a mark from before a time without passes begins anew.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from control_plane.fleet.records import (
    ErrorKind,
    InstanceRow,
    InstanceState,
    Market,
    Offering,
    OfferingHealth,
)
from provisioner import markets, offerings, sizing
from provisioner.model import (
    MINUTE_MS,
    Demand,
    FleetSnapshot,
    InstanceStatus,
    JobDemand,
    Launch,
    ObservedInstance,
    ScalePlan,
)

# A fresh instance may be missing from the cloud's lists for 40 s.
INVISIBLE_MS = MINUTE_MS
SILENT_MS_MAX = 10 * MINUTE_MS

_ACTIVE = frozenset({InstanceState.STARTING, InstanceState.RUNNING})
_ENDING = frozenset({InstanceStatus.STOPPING, InstanceStatus.TERMINATING})


def plan_scaling(snapshot: FleetSnapshot) -> ScalePlan:
    """Plan one pass over a pool."""
    draft = _DraftPlan(snapshot)
    for row in snapshot.rows:
        _apply_observation(draft, row)
    _disrupt_instances(draft)
    launches, wait_reason = _plan_launches(draft)
    fleet = replace(
        snapshot.fleet,
        health={name: it for name, it in draft.health.items() if it != offerings.FRESH},
        tokens=draft.tokens,
        tokens_ms=snapshot.now_ms,
        waits=wait_reason,
    )
    if not draft.tokens_used and snapshot.fleet.tokens >= draft.tokens:
        # A bucket that was full is full: no reason to write it down again.
        # One from a clock that was ahead is of now, or it would not fill until then.
        fleet = replace(fleet, tokens_ms=min(snapshot.fleet.tokens_ms, snapshot.now_ms))
    changed = tuple(draft.rows[row.id] for row in snapshot.rows if draft.rows[row.id] != row)
    reasons = [*draft.reasons, *(_launch_text(launch) for launch in launches)]
    return ScalePlan(fleet, changed, launches, tuple(draft.disconnected), tuple(reasons))


@dataclass
class _DraftPlan:
    """The plan while it is made. `disconnected`: see ScalePlan."""

    snapshot: FleetSnapshot
    rows: dict[str, InstanceRow] = field(default_factory=dict)
    health: dict[str, OfferingHealth] = field(default_factory=dict)
    tokens: float = 0.0
    tokens_used: int = 0
    disconnected: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        fleet, cap = self.snapshot.fleet, self.snapshot.settings.terminations_max
        now_ms = self.snapshot.now_ms
        self.health = {
            name: offerings.health_without_future(it, now_ms) for name, it in fleet.health.items()
        }
        elapsed_ms = max(0, self.snapshot.now_ms - fleet.tokens_ms)
        self.tokens = min(float(cap), fleet.tokens + cap * elapsed_ms / MINUTE_MS)

    def observation(self, row: InstanceRow) -> ObservedInstance:
        return self.snapshot.observed[row.id]

    def rows_in(self, *states: InstanceState) -> list[InstanceRow]:
        return [row for row in self.rows.values() if row.state in states]

    def offering_health(self, offering: Offering) -> OfferingHealth:
        return self.health.get(offering.name, offerings.FRESH)

    def elapsed_ms(self, mark_ms: int | None) -> int:
        """The time since a mark was set, without times in which no pass ran."""
        now_ms = self.snapshot.now_ms
        return 0 if mark_ms is None else now_ms - max(mark_ms, self.snapshot.fleet.resumed_ms)

    def set_state(self, row: InstanceRow, state: InstanceState, reason: str) -> None:
        """Move an instance to another state; its first reason stays."""
        reason = row.reason or reason
        ended_ms = self.snapshot.now_ms if state is InstanceState.ENDED else None
        self.rows[row.id] = replace(row, state=state, reason=reason, ended_ms=ended_ms)
        self.reasons.append(f"instance {row.id} is {state.lower()}: {reason}")

    def disrupt(self, row: InstanceRow, state: InstanceState, reason: str) -> bool:
        """Drain or terminate a live instance if the token bucket allows it; return whether so."""
        if self.tokens < 1:
            return False
        self.tokens -= 1
        self.tokens_used += 1
        if self.observation(row).agent is None:
            self.disconnected.append(row.id)
        self.set_state(row, state, reason)
        return True


def _apply_observation(draft: _DraftPlan, row: InstanceRow) -> None:
    """Apply what the cloud and the agent report of an instance: marks, and ends that we did not ask
    for.
    """
    observed = draft.observation(row)
    marked = _row_with_marks(draft, row, observed)
    draft.rows[row.id] = marked
    if marked.connected_ms is not None and row.connected_ms is None:
        draft.health[row.offering.name] = offerings.health_after_connection(
            draft.offering_health(row.offering)
        )
    if marked.notice_ms is not None and row.notice_ms is None:
        _record_interruption(draft, row)
    if observed.status is InstanceStatus.TERMINATED:
        _record_unrequested_end(draft, marked)
        draft.set_state(marked, InstanceState.ENDED, "the cloud ended it")
    elif _has_vanished(draft, marked):
        draft.set_state(marked, InstanceState.ENDED, "the cloud does not know it any more")
    elif marked.state is InstanceState.TERMINATING:
        return
    elif observed.status is InstanceStatus.STOPPED:
        _record_unrequested_end(draft, marked)
        draft.set_state(marked, InstanceState.TERMINATING, "it was stopped")
    elif observed.status in _ENDING:
        _record_unrequested_end(draft, marked)
        draft.set_state(marked, InstanceState.TERMINATING, "the cloud ends it")


def _row_with_marks(draft: _DraftPlan, row: InstanceRow, observed: ObservedInstance) -> InstanceRow:
    now_ms, agent = draft.snapshot.now_ms, observed.agent
    if row.state is InstanceState.TERMINATING:
        return replace(row, missed_ms=_mark_while(row.missed_ms, now_ms, observed.status is None))
    is_fresh = now_ms - row.launched_ms < INVISIBLE_MS
    missing = observed.status is None and agent is None and not is_fresh
    age_ms = now_ms - max(row.launched_ms, draft.snapshot.fleet.resumed_ms)
    state = row.state
    is_late = row.connected_ms is not None or age_ms >= draft.snapshot.settings.starting_ms_max
    if agent is not None and state is InstanceState.STARTING:
        state = InstanceState.RUNNING
    return replace(
        row,
        state=state,
        launched_ms=min(row.launched_ms, now_ms),
        connected_ms=_mark_once(row.connected_ms, now_ms, agent is not None),
        notice_ms=row.notice_ms if row.notice_ms is not None else observed.notice_ms,
        idle_ms=_mark_while(row.idle_ms, now_ms, agent is not None and agent.idle),
        silent_ms=_mark_while(row.silent_ms, now_ms, agent is None and is_late),
        missed_ms=_mark_while(row.missed_ms, now_ms, missing),
    )


def _mark_once(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    """The mark, set now if it is not yet; one that a clock which was ahead has set is of now."""
    if mark_ms is None:
        return now_ms if holds else None
    return min(mark_ms, now_ms)


def _mark_while(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    return _mark_once(mark_ms, now_ms, holds) if holds else None


def _has_vanished(draft: _DraftPlan, row: InstanceRow) -> bool:
    return row.missed_ms is not None and draft.elapsed_ms(row.missed_ms) >= INVISIBLE_MS


def _record_unrequested_end(draft: _DraftPlan, row: InstanceRow) -> None:
    """Record that an instance ends without our request."""
    if row.state is InstanceState.TERMINATING:
        return
    if row.connected_ms is None and row.notice_ms is None:
        _record_boot_failure(draft, row, f"instance {row.id} ended before its agent enrolled")
    else:
        _record_interruption(draft, row)


def _record_interruption(draft: _DraftPlan, row: InstanceRow) -> None:
    health = replace(draft.offering_health(row.offering), interrupted_ms=draft.snapshot.now_ms)
    draft.health[row.offering.name] = health


def _record_boot_failure(draft: _DraftPlan, row: InstanceRow, message: str) -> None:
    snapshot = draft.snapshot
    health = draft.offering_health(row.offering)
    if health.kind is ErrorKind.BOOT and row.launched_ms <= health.failed_ms:
        # Launched before the error that is known already: it says nothing new of the offering.
        return
    failure = offerings.Failure(ErrorKind.BOOT, message, snapshot.now_ms)
    draft.health[row.offering.name] = offerings.health_after_failure(
        health,
        failure,
        snapshot.settings.launch_error_limit,
        snapshot.random,
    )


def _disrupt_instances(draft: _DraftPlan) -> None:
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
            draft.disrupt(row, InstanceState.DRAINING, "the cloud advised to leave it")
    _drain_idle(draft)
    _disrupt_excess(draft)


def _terminate_silent(draft: _DraftPlan) -> None:
    for row in draft.rows_in(*_ACTIVE, InstanceState.DRAINING):
        if draft.elapsed_ms(row.silent_ms) < SILENT_MS_MAX:
            continue
        minutes = SILENT_MS_MAX // MINUTE_MS
        reason = f"its agent has been away for {minutes} min"
        if row.connected_ms is None:
            minutes += draft.snapshot.settings.starting_ms_max // MINUTE_MS
            reason = f"its agent has not enrolled for {minutes} min; look at the instance's log"
        if draft.disrupt(row, InstanceState.TERMINATING, reason) and row.connected_ms is None:
            _record_boot_failure(draft, row, f"instance {row.id}: {reason}")


def _drain_idle(draft: _DraftPlan) -> None:
    idle_ms_max = draft.snapshot.settings.idle_ms_max
    capacity = len(_capacity_rows(draft))
    idle = (row for row in draft.rows_in(*_ACTIVE) if draft.elapsed_ms(row.idle_ms) >= idle_ms_max)
    spare = _count_spare_idle(draft)
    for row in sorted(idle, key=lambda it: (-it.offering.price_per_hour, it.idle_ms or 0, it.id)):
        counts = _is_capacity(draft, row)
        if row.idle_ms is None or (counts and capacity <= draft.snapshot.settings.min_instances):
            continue
        if counts and spare[row.offering] < 1:
            # Pending work fits it.
            continue
        reason = f"it was idle for {draft.elapsed_ms(row.idle_ms) // 1000} s"
        if draft.disrupt(row, InstanceState.DRAINING, reason):
            capacity -= counts
            spare[row.offering] -= counts


def _count_spare_idle(draft: _DraftPlan) -> Counter[Offering]:
    """How many idle instances of each offering no pending request fits."""
    snapshot = draft.snapshot
    idle = Counter(row.offering for row in _idle_capacity_rows(draft))
    starting = Counter(row.offering for row in _capacity_rows(draft) if _is_starting(row))
    there = sum(_counts_against_max(row) for row in draft.rows.values())
    pending = sum(count for _, count in snapshot.pending)
    most = snapshot.settings.max_instances
    bounds = sizing.InstanceBounds(most, max(0, most - there - pending))
    return Counter(
        {
            it: count - sizing.count_kept_idle(snapshot.demand, it, count, starting[it], bounds)
            for it, count in idle.items()
        }
    )


def _disrupt_excess(draft: _DraftPlan) -> None:
    """End what exceeds the maximum: instances without work first, of these the newest; busy agents
    finish what they have.
    """
    staying = [row for row in draft.rows_in(*_ACTIVE) if row.notice_ms is None]
    pending = sum(count for _, count in draft.snapshot.pending)
    excess = len(staying) + pending - draft.snapshot.settings.max_instances
    reason = f"the pool has more than {draft.snapshot.settings.max_instances} instances"
    for row in sorted(staying, key=lambda it: (_keep_priority(draft, it), -it.launched_ms, it.id)):
        if excess <= 0:
            return
        connected = draft.observation(row).agent is not None
        # One that was connected may be back with its work: it is left to the rule of the silent.
        is_empty = not connected and row.connected_ms is None
        state = InstanceState.TERMINATING if is_empty else InstanceState.DRAINING
        excess -= draft.disrupt(row, state, reason)


def _keep_priority(draft: _DraftPlan, row: InstanceRow) -> int:
    observed = draft.observation(row)
    if observed.status is InstanceStatus.PENDING:
        return 0
    if observed.agent is not None:
        return 1 if observed.agent.idle else 4
    return 2 if row.silent_ms is not None else 3


def _is_capacity(draft: _DraftPlan, row: InstanceRow) -> bool:
    """Whether work can be placed on the instance, now or once it has started."""
    observed = draft.observation(row)
    is_leaving = row.notice_ms is not None or observed.rebalance
    takes_work = observed.agent is None or observed.agent.takes_work
    return row.state in _ACTIVE and not is_leaving and takes_work


def _capacity_rows(draft: _DraftPlan) -> list[InstanceRow]:
    return [row for row in draft.rows.values() if _is_capacity(draft, row)]


def _idle_capacity_rows(draft: _DraftPlan) -> list[InstanceRow]:
    """The instances whose agents are there and have no work."""
    agents = ((row, draft.observation(row).agent) for row in _capacity_rows(draft))
    return [row for row, agent in agents if agent is not None and agent.idle]


def _plan_launches(draft: _DraftPlan) -> tuple[tuple[Launch, ...], str]:
    """The launches, and why pending work gets none, "" if it does."""
    snapshot = draft.snapshot
    settings = snapshot.settings
    pending = [it for it, count in snapshot.pending for _ in range(count)]
    there = [row for row in draft.rows.values() if _counts_against_max(row)]
    starting = [row.offering for row in _capacity_rows(draft) if _is_starting(row)]
    idle = [row.offering for row in _idle_capacity_rows(draft)]
    capacity = [
        *(sizing.FreeCapacity(it.slots, it.slots, it.market) for it in (*starting, *pending)),
        *(sizing.FreeCapacity(it.slots, it.slots, it.market, is_connected=True) for it in idle),
    ]
    most = settings.max_instances - len(there) - len(pending)
    least = settings.min_instances - len(_capacity_rows(draft)) - len(pending)
    order, on_demand = offerings.usable_offerings(
        settings, snapshot.offerings, draft.health, snapshot.now_ms
    )
    able = tuple(dict.fromkeys((*order, *on_demand)))
    waiting = _demand_with_replacements(draft)
    demand = markets.assign_markets(waiting, snapshot.offerings, able, snapshot.now_ms)
    must = any(job.market is Market.ON_DEMAND for job in demand.jobs)
    if not order and not (must and on_demand):
        return (), _no_launch_reason(draft, waiting, least)
    room = sizing.InstanceBounds(settings.max_instances, max(0, most))
    launches, is_short = sizing.launches_for_demand(demand, order, capacity, room, on_demand)
    asked = sum(launch.count for launch in launches)
    bounds = sizing.LaunchBounds(least if order else 0, most)
    launches = sizing.clamp_launches(launches, bounds, able[0])
    mix = sizing.MarketCounts(
        len(there) + len(pending),
        sum(it.market is Market.ON_DEMAND for it in [*pending, *(row.offering for row in there)]),
    )
    launches = sizing.apply_on_demand_base(launches, settings, on_demand, mix)
    why = _fewer_launches_reason(draft, demand, is_short or asked > max(0, most))
    if not why and len(demand.jobs) < len(waiting.jobs):
        why = "there is time until the deadline to wait for spot instances"
    return launches, why


def _counts_against_max(row: InstanceRow) -> bool:
    """Whether an instance counts against the maximum."""
    lives = row.state in _ACTIVE or row.state is InstanceState.DRAINING
    return lives and row.notice_ms is None


def _is_starting(row: InstanceRow) -> bool:
    return row.connected_ms is None and row.silent_ms is None


def _demand_with_replacements(draft: _DraftPlan) -> Demand:
    """The pending work, and what runs on instances with a notice: it will be requested again."""
    demand = draft.snapshot.demand
    if demand.hold_reason:
        return Demand(hold_reason=demand.hold_reason)
    given_notice = (row for row in draft.rows_in(*_ACTIVE) if row.notice_ms is not None)
    agents = (draft.observation(row).agent for row in given_notice)
    slots = sum(agent.used_slots for agent in agents if agent is not None)
    if not slots:
        return demand
    return replace(demand, jobs=(*demand.jobs, JobDemand({1: slots})))


def _no_launch_reason(draft: _DraftPlan, demand: Demand, least: int) -> str:
    if not (demand.has_pending or least > 0):
        return demand.hold_reason if draft.snapshot.demand.has_pending else ""
    snapshot = draft.snapshot
    told = offerings.unavailability_text(snapshot.offerings, draft.health, snapshot.now_ms)
    return f"no instance can be had: {told}" if told else "the pool has no offerings"


def _fewer_launches_reason(draft: _DraftPlan, demand: Demand, capped: bool) -> str:
    snapshot = draft.snapshot
    if demand.hold_reason and snapshot.demand.has_pending:
        return demand.hold_reason
    most = snapshot.settings.max_instances
    if large := sizing.unservable_sizes(demand, snapshot.offerings, most):
        have = ", ".join(f"{it.name} with {it.slots}" for it in snapshot.offerings)
        sizes = ", ".join(map(str, large))
        return f"requests for {sizes} slots fit into no {most} instances of one offering: {have}"
    if capped:
        return f"the pool has its {most} instances"
    return ""


def _launch_text(launch: Launch) -> str:
    return f"launch {launch.count} of {launch.offering.name}"
