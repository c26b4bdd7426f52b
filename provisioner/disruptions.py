"""The choice of instances that a pass drains or terminates. Pure."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from enum import IntEnum
from math import ceil

from control_plane.fleet.records import InstanceRow, InstanceState, Market
from detcloud.shared.plurals import count_text
from provisioner import consolidation, sizing
from provisioner.draft_plan import DraftPlan
from provisioner.fleet_capacity import (
    ACTIVE,
    busy_capacity_rows,
    capacity_rows,
    connected_capacity_rows,
    idle_capacity_rows,
    is_capacity,
    starting_capacity_rows,
)
from provisioner.launch_need import LaunchNeed, assess_need, demand_with_replacements, room_to_make
from provisioner.model import MINUTE_MS, InstanceStatus
from provisioner.observations import record_boot_failure
from provisioner.overdue_requests import OverdueRequest
from provisioner.request_shapes import InstanceBounds, needs_instances

SILENT_MS_MAX = 10 * MINUTE_MS


def disrupt_instances(draft: DraftPlan) -> None:
    """Terminate drained and silent instances, then drain instances that should leave, in the draft.

    An instance is silent if its agent was disconnected for SILENT_MS_MAX, or did not enrol within
    `starting_ms_max`. The second case counts as a failed boot in the health of the offering, unless
    an interruption was announced or `record_boot_failure` excludes the instance.

    Instances drain in this order: with a rebalance recommendation, with room that the overdue
    request needs, with room that a request needs which excludes the agent, idle or spare for
    `idle_ms_max`, in excess of the maximum. The overdue request is the first servable request that
    has waited longer than the pool allows. An instance is spare if it is idle, or its work would
    fit into the free slots of another instance of its size. The draft's marks of spare instances
    are updated.

    Each drain or termination uses up one of the draft's `tokens`, except the termination of an
    instance that was drained. Without a token left, the instance stays as it is. A draining
    instance that never connected is terminated. Instances that drain or terminate without a
    connected agent are listed in `disconnected`. Nothing is stored.
    """
    _terminate_drained(draft)
    _terminate_silent(draft)
    _drain_recommended(draft)
    need = assess_need(draft)
    _drain_for_overdue(draft, need.overdue)
    _drain_excluded(draft, need)
    _mark_spare(draft)
    _drain_idle(draft, need)
    _disrupt_excess(draft)


def _terminate_drained(draft: DraftPlan) -> None:
    """Terminate draining instances without work left, in the draft, without using up `tokens`.

    These are instances with a connected agent that is idle and closed to new work, and instances
    whose agent never connected. The latter are also listed in `disconnected`. A draining instance
    whose agent is not connected any more stays.
    """
    for row in draft.rows_in(InstanceState.DRAINING):
        agent = draft.observation(row).agent
        is_drained = agent is not None and agent.idle and agent.is_closed
        if row.connected_ms is None:
            draft.disconnected.append(row.id)
        if is_drained or row.connected_ms is None:
            draft.set_state(row, InstanceState.TERMINATING, "it has no work left")


def _drain_recommended(draft: DraftPlan) -> None:
    """Drain active instances in the draft that the cloud recommends replacing.

    An instance with an interruption notice stays. Each drain uses up one of the draft's `tokens`;
    without a token left, an instance stays. An instance without a connected agent is listed in
    `disconnected`.
    """
    for row in draft.rows_in(*ACTIVE):
        if draft.observation(row).rebalance and row.notice_ms is None:
            draft.disrupt(row, InstanceState.DRAINING, "the cloud recommended replacing it")


def _terminate_silent(draft: DraftPlan) -> None:
    """Terminate active and draining instances with agents that were silent for SILENT_MS_MAX.

    Also terminate instances whose agents did not enrol within `starting_ms_max`. Count a failed
    boot of such an instance against the offering, unless an interruption was announced or
    `record_boot_failure` excludes the instance. Each termination uses up one of the draft's
    `tokens`, and is listed in `disconnected`. Without a token left, an instance stays, and no
    failed boot is counted. Update the draft's rows, health and reasons; no cloud is asked.
    """
    for row in draft.rows_in(*ACTIVE, InstanceState.DRAINING):
        reason = _silence_reason(draft, row)
        is_fault = row.connected_ms is None and row.notice_ms is None
        if reason and draft.disrupt(row, InstanceState.TERMINATING, reason) and is_fault:
            record_boot_failure(draft, row, f"instance {row.id}: {reason}")


def _silence_reason(draft: DraftPlan, row: InstanceRow) -> str:
    """Return why an agent has been silent for too long, for users; "" if not.

    An agent that was connected may be silent for SILENT_MS_MAX. After a gap without passes, the
    time counts from the end of the gap. An agent that never connected is silent for too long as
    soon as the row has the mark `silent_ms`, which begins after the starting period.
    """
    never_connected = row.connected_ms is None
    limit_ms = 0 if never_connected else SILENT_MS_MAX
    if row.silent_ms is None or draft.elapsed_ms(row.silent_ms) < limit_ms:
        return ""
    if never_connected:
        minutes = draft.snapshot.settings.starting_ms_max // MINUTE_MS
        return f"its agent has not enrolled for {minutes} min"
    return f"its agent has been silent for {SILENT_MS_MAX // MINUTE_MS} min"


def _drain_for_overdue(draft: DraftPlan, request: OverdueRequest | None) -> None:
    """Drain connected instances, in the draft, to make room for the overdue request.

    `request` is the first servable request that has waited longer than the pool allows. The room is
    for instances of one size (`room_to_make`). The drained instances have other sizes and accept
    work, and those with the least work go first, as few as needed. Do nothing without a request, if
    no drain is needed, if draining all would not suffice, or while the API is down. Each drain uses
    up one of the draft's `tokens`; without a token left, an instance stays.
    """
    room = room_to_make(draft, request)
    if request is None or not room.drains:
        return
    others = [row for row in connected_capacity_rows(draft) if row.offering.slots != room.size]
    for row in sorted(others, key=lambda other: _drain_order(draft, other))[: room.drains]:
        wanted = count_text(request.slots, "slot")
        reason = f"a request for {wanted} has waited too long and needs its place"
        draft.disrupt(row, InstanceState.DRAINING, reason)


def _drain_excluded(draft: DraftPlan, need: LaunchNeed) -> None:
    """Drain idle instances, in the draft, to make room for requests that exclude the instances.

    Do nothing unless a request lacks room below the pool's maximum. An instance that another
    pending request will use stays (`_count_unneeded_idle`). At least one instance drains, and as
    many as the wanted launches exceed the room. Each drain uses up one of the draft's `tokens`;
    without a token left, an instance stays.
    """
    excluded = {agent for job in need.demand.jobs for agent in job.excluded_agents}
    if not need.is_short or not excluded:
        return
    lacking = sum(launch.count for launch in need.launches) - need.most
    unneeded = _count_unneeded_idle(draft, need)
    idle = [row for row in idle_capacity_rows(draft) if row.id in excluded]
    left = max(1, lacking)
    for row in sorted(idle, key=lambda other: _drain_order(draft, other)):
        reason = "a request that excludes its agent waits and needs its place"
        is_free = left > 0 and unneeded[row.offering.slots] > 0
        if is_free and draft.disrupt(row, InstanceState.DRAINING, reason):
            unneeded[row.offering.slots] -= 1
            left -= 1


def _drain_order(draft: DraftPlan, row: InstanceRow) -> tuple[int, float, int, str]:
    """Return a sort key: the least work first, then the most expensive, then the oldest.

    The work of an agent is the number of slots in use, and one more if the agent is not idle. An
    instance without a connected agent has no work.
    """
    agent = draft.observation(row).agent
    used = agent.used_slots + (not agent.idle) if agent is not None else 0
    return used, -row.offering.price_per_hour, row.launched_ms, row.id


def _drain_idle(draft: DraftPlan, need: LaunchNeed) -> None:
    """Drain idle instances in the draft that were idle or spare long enough (`_idle_drain_reason`).

    An instance that accepts work (`is_capacity`) must also meet both conditions:

    - No pending request will use the instance (`_count_unneeded_idle`).
    - The pool keeps its minimum of instances, or a waiting request needs the room of an instance of
      this size (`_sizes_in_the_way`).

    The dearest instance goes first; of equal prices, the longest idle. Each drain uses up one of
    the draft's `tokens`; without a token left, an instance stays. The drain of an instance that
    accepts work also removes the oldest spare mark of its size from the draft.
    """
    unneeded, in_the_way = _count_unneeded_idle(draft, need), _sizes_in_the_way(draft, need)
    idle = (row for row in draft.rows_in(*ACTIVE) if row.idle_ms is not None)
    for row in sorted(
        idle, key=lambda item: (-item.offering.price_per_hour, item.idle_ms or 0, item.id)
    ):
        reason = _idle_drain_reason(draft, row)
        size, counts = row.offering.slots, is_capacity(draft, row)
        may_go = _may_shrink(draft) or size in in_the_way
        if not reason or (counts and not (may_go and unneeded[size] > 0)):
            continue
        if draft.disrupt(row, InstanceState.DRAINING, reason) and counts:
            unneeded[size] -= 1
            draft.spare_ms = consolidation.marks_after_end(draft.spare_ms, size)


def _idle_drain_reason(draft: DraftPlan, row: InstanceRow) -> str:
    """Return why an idle instance has been idle or spare for long enough, for users; "" if not.

    - The instance was idle for `idle_ms_max`: the text names its idle time.
    - Otherwise, the instance accepts work (`is_capacity`), its size had a spare instance for
      `idle_ms_max`, and the on-demand share stays without the instance: the text names the time.
    - In any other case, return "".

    Whether pending requests or the pool's minimum need the instance does not matter here.
    """
    idle_ms_max = draft.snapshot.settings.idle_ms_max
    idle_ms = draft.elapsed_ms(row.idle_ms)
    if idle_ms >= idle_ms_max:
        return f"it was idle for {idle_ms // 1000} s"
    spare_ms = draft.elapsed_ms(next(iter(draft.spare_ms.get(row.offering.slots, ())), None))
    is_spare = is_capacity(draft, row) and spare_ms >= idle_ms_max
    if not is_spare or not _keeps_on_demand_base(draft, row):
        return ""
    return f"fewer instances were enough for {spare_ms // 1000} s, and it has no work"


def _count_unneeded_idle(draft: DraftPlan, need: LaunchNeed) -> Counter[int]:
    """Count the idle instances by size that no pending request will use. The draft is unchanged.

    Instances that drain, accept no work or are announced to end are not counted. All counts are 0
    while instances must drain for the overdue request, which has waited longer than the pool
    allows. While the demand has a hold reason, no request will use an instance. Zero-slot requests
    keep no instance.
    """
    snapshot = draft.snapshot
    # Silent and draining instances count as room, since replacements will follow.
    existing = len(starting_capacity_rows(draft)) + len(connected_capacity_rows(draft))
    pending = sum(count for _, count in snapshot.pending)
    most = snapshot.settings.max_instances
    bounds = InstanceBounds(most, max(0, most - existing - pending))
    if room_to_make(draft, need.overdue).drains:
        # The overdue request needs all idle instances of the wanted size.
        return Counter()
    idle = Counter(row.offering.slots for row in idle_capacity_rows(draft))
    kept = Counter[int]()
    for excluded in {job.excluded_agents for job in snapshot.demand.jobs}:
        kept += _count_kept_idle(draft, excluded, bounds)
    return idle - kept


def _count_kept_idle(
    draft: DraftPlan, excluded_agents: Collection[str], bounds: InstanceBounds
) -> Counter[int]:
    """Count the idle instances by size that requests with equal exclusions will use.

    Instances with an excluded agent do not count.
    """
    demand = draft.snapshot.demand
    jobs = tuple(job for job in demand.jobs if job.excluded_agents == excluded_agents)
    demand = replace(demand, jobs=jobs)
    idle, busy, starting = (
        Counter(row.offering.slots for row in rows(draft) if row.id not in excluded_agents)
        for rows in (idle_capacity_rows, busy_capacity_rows, starting_capacity_rows)
    )
    for offering, count in draft.snapshot.pending:
        starting[offering.slots] += count
    return Counter(
        {
            size: sizing.count_kept_idle(demand, size, count, busy[size], starting[size], bounds)
            for size, count in idle.items()
        }
    )


def _sizes_in_the_way(draft: DraftPlan, need: LaunchNeed) -> set[int]:
    """Return the sizes of idle instances that serve no waiting request, while a request lacks room.

    Instances of these sizes cannot serve any waiting request. They may drain even below the pool's
    minimum. Empty if no request lacks room below the pool's maximum. Empty also while a zero-slot
    request waits, which any instance can serve.
    """
    if not need.is_short:
        return set()
    most = draft.snapshot.settings.max_instances
    sizes = {row.offering.slots for row in idle_capacity_rows(draft)}
    return {size for size in sizes if not needs_instances(need.demand, {size}, most)}


def _mark_spare(draft: DraftPlan) -> None:
    """Set the draft's marks of spare instances, by the number of spare instances of each size now.

    A mark is the time since when an instance has been spare: idle, or with so little work that
    another instance could run the work. The oldest marks stay, and more spare instances are marked
    with the present time. Instances that drain, accept no work or are announced to end are not
    spare. The number is 0, and all marks end, while a servable request waits, a launch is in
    progress, or an instance starts or is disconnected.
    """
    snapshot, rows = draft.snapshot, capacity_rows(draft)
    agents = [(row.offering.slots, draft.observation(row).agent) for row in rows]
    connected = [(size, agent) for size, agent in agents if agent is not None]
    sizes = {*(offering.slots for offering in snapshot.offerings), *(size for size, _ in agents)}
    waits = needs_instances(demand_with_replacements(draft), sizes, snapshot.settings.max_instances)
    is_quiet = not waits and not snapshot.pending and len(connected) == len(agents)
    counts = consolidation.count_spare(connected if is_quiet else ())
    draft.spare_ms = consolidation.updated_marks(snapshot.fleet.spare_ms, counts, snapshot.now_ms)


def _may_shrink(draft: DraftPlan) -> bool:
    """Whether more instances than the pool's minimum start or run, and accept work (`is_capacity`).

    Disconnected instances count; launches in progress do not.
    """
    return len(capacity_rows(draft)) > draft.snapshot.settings.min_instances


def _keeps_on_demand_base(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether the pool keeps the on-demand share without this instance. True for spot instances.

    The share `on_demand_base` is that of the other instances that start or run and accept work,
    rounded up to whole instances.
    """
    left = [
        capacity_row.offering.market
        for capacity_row in capacity_rows(draft)
        if capacity_row.id != row.id
    ]
    base = ceil(draft.snapshot.settings.on_demand_base * len(left))
    return row.offering.market is Market.SPOT or left.count(Market.ON_DEMAND) >= base


def _disrupt_excess(draft: DraftPlan) -> None:
    """Drain instances in excess of the pool's maximum, in the draft, until the rest fits.

    Unfilled spot requests leave first, then idle, silent and other disconnected instances, and
    instances with work last (`_KeepPriority`). Of equal priority, the newest instance leaves first.
    Launches in progress count; instances that drain or have a notice do not. Terminate an excess
    instance that never connected. Each drain or termination uses up one of the draft's `tokens`;
    without a token left, an instance stays.
    """
    staying = [row for row in draft.rows_in(*ACTIVE) if row.notice_ms is None]
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


class _KeepPriority(IntEnum):
    """The order in which instances in excess of the maximum leave, the first to leave first."""

    UNFILLED = 0
    """A spot request that the cloud has not filled."""
    IDLE = 1
    """An instance with a connected agent without work."""
    SILENT = 2
    """An instance whose agent has been silent (`silent_ms`)."""
    DISCONNECTED = 3
    """Any other instance without a connected agent, such as a starting one."""
    BUSY = 4
    """An instance with a connected agent that has work, zero-slot work included."""


def _keep_priority(draft: DraftPlan, row: InstanceRow) -> _KeepPriority:
    """Return the place of an instance in the order in which excess instances leave."""
    observed = draft.observation(row)
    if observed.status is InstanceStatus.PENDING:
        return _KeepPriority.UNFILLED
    if observed.agent is not None:
        return _KeepPriority.IDLE if observed.agent.idle else _KeepPriority.BUSY
    return _KeepPriority.SILENT if row.silent_ms is not None else _KeepPriority.DISCONNECTED
