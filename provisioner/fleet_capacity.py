"""The instances of a draft that take work, that leave, and that count against the maximum. Pure."""

from control_plane.fleet.records import InstanceRow, InstanceState
from provisioner.draft_plan import DraftPlan
from provisioner.request_shapes import InstanceBounds

ACTIVE = frozenset({InstanceState.STARTING, InstanceState.RUNNING})


def is_capacity(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether an instance starts or runs, accepts work, and is not announced to end.

    A notice and a rebalance recommendation announce the end. An instance without a connected agent
    accepts work.
    """
    observed = draft.observation(row)
    is_leaving = row.notice_ms is not None or observed.rebalance
    takes_work = observed.agent is None or observed.agent.takes_work
    return row.state in ACTIVE and not is_leaving and takes_work


def capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the starting and running instances that accept work and are not announced to end.

    A notice and a rebalance recommendation announce the end. An instance whose agent is not
    connected counts, also while the agent is silent.
    """
    return [row for row in draft.rows.values() if is_capacity(draft, row)]


def connected_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the instances of `capacity_rows` with a connected agent."""
    return [row for row in capacity_rows(draft) if draft.observation(row).agent is not None]


def idle_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the instances of `capacity_rows` with a connected agent without any work.

    An instance with zero-slot work is not idle.
    """
    return [row for row in connected_capacity_rows(draft) if not _is_busy(draft, row)]


def busy_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the instances of `capacity_rows` with a connected agent that has work."""
    return [row for row in connected_capacity_rows(draft) if _is_busy(draft, row)]


def starting_capacity_rows(draft: DraftPlan) -> list[InstanceRow]:
    """Return the instances of `capacity_rows` with an agent that is not connected and will connect.

    The agent has not enrolled, or the pool has not processed its session yet. A silent agent does
    not count, nor an agent that was connected before and is not connected now.
    """
    return [
        row
        for row in capacity_rows(draft)
        if row.silent_ms is None
        and not draft.observation(row).agent
        and (row.connected_ms is None or draft.observation(row).is_joining)
    ]


def instance_bounds(draft: DraftPlan) -> InstanceBounds:
    """Return the pool's maximum, the room for launches, and the number of leaving instances.

    The room is at least 0. Launches in progress, and starting, running and draining instances use
    up room; instances with an interruption notice use up no room. Leaving instances drain, or have
    a silent agent, and have no notice.
    """
    settings, rows = draft.snapshot.settings, draft.rows.values()
    existing = sum(map(counts_against_max, rows))
    room = settings.max_instances - existing - sum(count for _, count in draft.snapshot.pending)
    leaving = sum(counts_against_max(row) and _is_leaving(row) for row in rows)
    return InstanceBounds(settings.max_instances, max(0, room), leaving)


def counts_against_max(row: InstanceRow) -> bool:
    """Whether an instance is starting, running or draining, without an interruption notice."""
    is_live = row.state in ACTIVE or row.state is InstanceState.DRAINING
    return is_live and row.notice_ms is None


def _is_leaving(row: InstanceRow) -> bool:
    """Whether the instance drains, or has a silent agent, so that a replacement may follow.

    The row's mark `silent_ms` decides. False for a TERMINATING instance without the mark.
    """
    return row.state is InstanceState.DRAINING or row.silent_ms is not None


def _is_busy(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether the instance has a connected agent with work, zero-slot work included."""
    agent = draft.observation(row).agent
    return agent is not None and not agent.idle
