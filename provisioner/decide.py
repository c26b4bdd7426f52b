"""What becomes of a pool's instances: a pure function of what is known of them.

The rules are those of Determined 0.19's scale decider (agent_rm/provisioner/scaledecider): an
instance may take so long to start, be idle for so long, be away for so long; more are launched for
what waits, between a minimum and a maximum. It differs where that is known to hurt:

- what has work is never ended: an idle agent first stops taking work, and ends when it is seen to
  have none then; one too many finishes what it has;
- what drains is no capacity, though it counts against the maximum until it has gone; what was given
  notice is neither, so that its replacement may start at the notice;
- what a job may not have is not counted as demand; what an instance given notice runs is;
- terminations are limited by a bucket, launches by what failed before;
- a mark from before a time in which nobody looked begins anew.
"""

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
    InstanceStatus,
    JobDemand,
    Launch,
    ScalePlan,
    Seen,
    Situation,
)

# A fresh instance may be missing from the cloud's lists for 40 s.
INVISIBLE_MS = MINUTE_MS
SILENT_MS_MAX = 10 * MINUTE_MS

_ACTIVE = frozenset({InstanceState.STARTING, InstanceState.RUNNING})
_GOING = frozenset({InstanceStatus.STOPPING, InstanceStatus.TERMINATING})
_GONE = frozenset({InstanceStatus.STOPPED, InstanceStatus.TERMINATED})


def decide(situation: Situation) -> ScalePlan:
    """The plan for one pass over a pool."""
    draft = _Draft(situation)
    for row in situation.rows:
        _look_at(draft, row)
    _end(draft)
    launches, waits = _launches(draft)
    fleet = replace(
        situation.fleet,
        health={name: it for name, it in draft.health.items() if it != offerings.FRESH},
        tokens=draft.tokens,
        tokens_ms=situation.now_ms,
        waits=waits,
    )
    if not draft.tokens_used and situation.fleet.tokens >= draft.tokens:
        # A bucket that was full is full: no reason to write it down again.
        fleet = replace(fleet, tokens_ms=situation.fleet.tokens_ms)
    changed = tuple(draft.rows[row.id] for row in situation.rows if draft.rows[row.id] != row)
    reasons = [*draft.reasons, *(_told(launch) for launch in launches)]
    return ScalePlan(fleet, changed, launches, tuple(draft.unseen), tuple(reasons))


@dataclass
class _Draft:
    """The decision so far. `ending`: instances that are asked to leave from now on."""

    given: Situation
    rows: dict[str, InstanceRow] = field(default_factory=dict)
    health: dict[str, OfferingHealth] = field(default_factory=dict)
    tokens: float = 0.0
    tokens_used: int = 0
    unseen: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        fleet, cap = self.given.fleet, self.given.settings.terminations_max
        self.health = dict(fleet.health)
        elapsed_ms = max(0, self.given.now_ms - fleet.tokens_ms)
        self.tokens = min(float(cap), fleet.tokens + cap * elapsed_ms / MINUTE_MS)

    def seen(self, row: InstanceRow) -> Seen:
        return self.given.seen[row.id]

    def of(self, *states: InstanceState) -> list[InstanceRow]:
        return [row for row in self.rows.values() if row.state in states]

    def health_of(self, offering: Offering) -> OfferingHealth:
        return self.health.get(offering.name, offerings.FRESH)

    def since(self, mark_ms: int | None) -> int:
        """How long a mark has stood, times in which nobody looked left out."""
        now_ms = self.given.now_ms
        return 0 if mark_ms is None else now_ms - max(mark_ms, self.given.fleet.resumed_ms)

    def move(self, row: InstanceRow, state: InstanceState, reason: str) -> None:
        """To another state; the first reason stays."""
        reason = row.reason or reason
        ended_ms = self.given.now_ms if state is InstanceState.ENDED else None
        self.rows[row.id] = replace(row, state=state, reason=reason, ended_ms=ended_ms)
        self.reasons.append(f"instance {row.id} is {state.lower()}: {reason}")

    def leave(self, row: InstanceRow, state: InstanceState, reason: str) -> bool:
        """The same for one that lives, if the bucket allows it."""
        if self.tokens < 1:
            return False
        self.tokens -= 1
        self.tokens_used += 1
        if self.seen(row).agent is None:
            self.unseen.append(row.id)
        self.move(row, state, reason)
        return True


def _look_at(draft: _Draft, row: InstanceRow) -> None:
    """What the cloud and the agent say of an instance, as marks and moves that nobody decides."""
    seen = draft.seen(row)
    marked = _marked(draft, row, seen)
    draft.rows[row.id] = marked
    if marked.connected_ms is not None and row.connected_ms is None:
        draft.health[row.offering.name] = offerings.connected(draft.health_of(row.offering))
    if marked.notice_ms is not None and row.notice_ms is None:
        _interrupted(draft, row)
    if seen.status is InstanceStatus.TERMINATED:
        _taken_away(draft, marked)
        draft.move(marked, InstanceState.ENDED, "the cloud ended it")
    elif _vanished(draft, marked):
        draft.move(marked, InstanceState.ENDED, "the cloud does not know it any more")
    elif marked.state is InstanceState.TERMINATING:
        return
    elif seen.status is InstanceStatus.STOPPED:
        _taken_away(draft, marked)
        draft.move(marked, InstanceState.TERMINATING, "it was stopped")
    elif seen.status in _GOING:
        _taken_away(draft, marked)
        draft.move(marked, InstanceState.TERMINATING, "the cloud ends it")


def _marked(draft: _Draft, row: InstanceRow, seen: Seen) -> InstanceRow:
    now_ms, agent = draft.given.now_ms, seen.agent
    if row.state is InstanceState.TERMINATING:
        return replace(row, missed_ms=_kept(row.missed_ms, now_ms, seen.status is None))
    is_fresh = now_ms - row.launched_ms < INVISIBLE_MS
    missing = seen.status is None and agent is None and not is_fresh
    age_ms = now_ms - max(row.launched_ms, draft.given.fleet.resumed_ms)
    state = row.state
    is_late = row.connected_ms is not None or age_ms >= draft.given.settings.starting_ms_max
    if agent is not None and state is InstanceState.STARTING:
        state = InstanceState.RUNNING
    return replace(
        row,
        state=state,
        connected_ms=_first(row.connected_ms, now_ms, agent is not None),
        notice_ms=row.notice_ms if row.notice_ms is not None else seen.notice_ms,
        idle_ms=_kept(row.idle_ms, now_ms, agent is not None and agent.idle),
        silent_ms=_kept(row.silent_ms, now_ms, agent is None and is_late),
        missed_ms=_kept(row.missed_ms, now_ms, missing),
    )


def _first(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    return now_ms if mark_ms is None and holds else mark_ms


def _kept(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    return _first(mark_ms, now_ms, holds) if holds else None


def _vanished(draft: _Draft, row: InstanceRow) -> bool:
    return row.missed_ms is not None and draft.since(row.missed_ms) >= INVISIBLE_MS


def _taken_away(draft: _Draft, row: InstanceRow) -> None:
    """An instance ends and we did not ask for it."""
    if row.state is InstanceState.TERMINATING:
        return
    if row.connected_ms is None:
        _boot_failed(draft, row, f"instance {row.id} ended before its agent enrolled")
    else:
        _interrupted(draft, row)


def _interrupted(draft: _Draft, row: InstanceRow) -> None:
    health = replace(draft.health_of(row.offering), interrupted_ms=draft.given.now_ms)
    draft.health[row.offering.name] = health


def _boot_failed(draft: _Draft, row: InstanceRow, message: str) -> None:
    given = draft.given
    failure = offerings.Failure(ErrorKind.BOOT, message, given.now_ms)
    draft.health[row.offering.name] = offerings.failed(
        draft.health_of(row.offering), failure, given.settings.launch_error_limit, given.draw
    )


def _end(draft: _Draft) -> None:
    """Who is to go, in this order: what drained, what is silent, what is advised to leave, what is
    idle, what is too much.
    """
    for row in draft.of(InstanceState.DRAINING):
        agent = draft.seen(row).agent
        left = agent is not None and agent.idle and not agent.takes_work
        if row.connected_ms is None:
            draft.unseen.append(row.id)
        if left or row.connected_ms is None:
            draft.move(row, InstanceState.TERMINATING, "it has no work left")
    _end_silent(draft)
    for row in draft.of(*_ACTIVE):
        if draft.seen(row).rebalance and row.notice_ms is None:
            draft.leave(row, InstanceState.DRAINING, "the cloud advised to leave it")
    _end_idle(draft)
    _end_excess(draft)


def _end_silent(draft: _Draft) -> None:
    for row in draft.of(*_ACTIVE, InstanceState.DRAINING):
        if draft.since(row.silent_ms) < SILENT_MS_MAX:
            continue
        minutes = SILENT_MS_MAX // MINUTE_MS
        reason = f"its agent has been away for {minutes} min"
        if row.connected_ms is None:
            minutes += draft.given.settings.starting_ms_max // MINUTE_MS
            reason = f"its agent has not enrolled for {minutes} min; look at the instance's log"
        if draft.leave(row, InstanceState.TERMINATING, reason) and row.connected_ms is None:
            _boot_failed(draft, row, f"instance {row.id}: {reason}")


def _end_idle(draft: _Draft) -> None:
    idle_ms_max = draft.given.settings.idle_ms_max
    capacity = len(_capacity(draft))
    idle = (row for row in draft.of(*_ACTIVE) if draft.since(row.idle_ms) >= idle_ms_max)
    for row in sorted(idle, key=lambda it: (-it.offering.price_per_hour, it.idle_ms or 0, it.id)):
        counts = _is_capacity(draft, row)
        if row.idle_ms is None or (counts and capacity <= draft.given.settings.min_instances):
            continue
        reason = f"it was idle for {draft.since(row.idle_ms) // 1000} s"
        if draft.leave(row, InstanceState.DRAINING, reason):
            capacity -= counts


def _end_excess(draft: _Draft) -> None:
    """What nobody waits for goes first, of that the newest; busy agents finish what they have."""
    staying = [row for row in draft.of(*_ACTIVE) if row.notice_ms is None]
    pending = sum(count for _, count in draft.given.pending)
    excess = len(staying) + pending - draft.given.settings.max_instances
    reason = f"the pool has more than {draft.given.settings.max_instances} instances"
    for row in sorted(staying, key=lambda it: (_worth(draft, it), -it.launched_ms, it.id)):
        if excess <= 0:
            return
        connected = draft.seen(row).agent is not None
        # One that was connected may be back with its work: it is left to the rule of the silent.
        is_empty = not connected and row.connected_ms is None
        state = InstanceState.TERMINATING if is_empty else InstanceState.DRAINING
        excess -= draft.leave(row, state, reason)


def _worth(draft: _Draft, row: InstanceRow) -> int:
    seen = draft.seen(row)
    if seen.status is InstanceStatus.PENDING:
        return 0
    if seen.agent is not None:
        return 1 if seen.agent.idle else 4
    return 2 if row.silent_ms is not None else 3


def _is_capacity(draft: _Draft, row: InstanceRow) -> bool:
    """Whether work can be placed there, now or once it has started."""
    seen = draft.seen(row)
    away = row.notice_ms is not None or seen.rebalance
    return row.state in _ACTIVE and not away and (seen.agent is None or seen.agent.takes_work)


def _capacity(draft: _Draft) -> list[InstanceRow]:
    return [row for row in draft.rows.values() if _is_capacity(draft, row)]


def _launches(draft: _Draft) -> tuple[tuple[Launch, ...], str]:
    """What to launch, and why what waits gets nothing, "" if it does."""
    given = draft.given
    settings, pending = given.settings, [it for it, count in given.pending for _ in range(count)]
    there = [row for row in draft.rows.values() if _counts(row)]
    starting = [row.offering for row in _capacity(draft) if _is_coming(row)]
    coming = [*starting, *pending]
    most = settings.max_instances - len(there) - len(pending)
    least = settings.min_instances - len(_capacity(draft)) - len(pending)
    order, on_demand = offerings.usable(settings, given.offerings, draft.health, given.now_ms)
    able = tuple(dict.fromkeys((*order, *on_demand)))
    waiting = _with_replacements(draft)
    demand = markets.placed(waiting, given.offerings, able, given.now_ms)
    must = any(job.market is Market.ON_DEMAND for job in demand.jobs)
    if not order and not (must and on_demand):
        return (), _why_none(draft, waiting, least)
    launches = sizing.wanted(demand, order, coming, settings.max_instances, on_demand)
    asked = sum(launch.count for launch in launches)
    bounds = sizing.Bounds(least if order else 0, most)
    launches = sizing.bounded(launches, bounds, able[0])
    mix = sizing.Mix(
        len(there) + len(pending),
        sum(it.market is Market.ON_DEMAND for it in [*pending, *(row.offering for row in there)]),
    )
    launches = sizing.mixed(launches, settings, on_demand, mix)
    why = _why_fewer(draft, demand, asked > max(0, most))
    if not why and len(demand.jobs) < len(waiting.jobs):
        why = "there is time until the deadline to wait for spot instances"
    return launches, why


def _counts(row: InstanceRow) -> bool:
    """Whether it counts against the maximum."""
    lives = row.state in _ACTIVE or row.state is InstanceState.DRAINING
    return lives and row.notice_ms is None


def _is_coming(row: InstanceRow) -> bool:
    return row.connected_ms is None and row.silent_ms is None


def _with_replacements(draft: _Draft) -> Demand:
    """What waits, and what runs where notice was given: it will ask again."""
    demand = draft.given.demand
    if demand.held_back:
        return Demand(held_back=demand.held_back)
    given_notice = (row for row in draft.of(*_ACTIVE) if row.notice_ms is not None)
    agents = (draft.seen(row).agent for row in given_notice)
    slots = sum(agent.used_slots for agent in agents if agent is not None)
    if not slots:
        return demand
    return replace(demand, jobs=(*demand.jobs, JobDemand({1: slots})))


def _why_none(draft: _Draft, demand: Demand, least: int) -> str:
    if not (demand.waits or least > 0):
        return demand.held_back if draft.given.demand.waits else ""
    given = draft.given
    told = offerings.described(given.offerings, draft.health, given.now_ms)
    return f"no instance can be had: {told}" if told else "the pool has no offerings"


def _why_fewer(draft: _Draft, demand: Demand, capped: bool) -> str:
    given = draft.given
    if demand.held_back and given.demand.waits:
        return demand.held_back
    most = given.settings.max_instances
    if large := sizing.too_large(demand, given.offerings, most):
        have = ", ".join(f"{it.name} with {it.slots}" for it in given.offerings)
        sizes = ", ".join(map(str, large))
        return f"requests for {sizes} slots fit into no {most} instances of one offering: {have}"
    if capped:
        return f"the pool has its {most} instances"
    return ""


def _told(launch: Launch) -> str:
    return f"launch {launch.count} of {launch.offering.name}"
