"""Updates of instance rows and offering health from the reports of clouds and agents. Pure.

A mark is the time at which a condition began, such as an agent's idleness. A mark in the future
comes from a clock that was ahead; it is replaced by the current time.
"""

from dataclasses import replace
from typing import NamedTuple

from control_plane.fleet.records import ErrorKind, InstanceRow, InstanceState
from provisioner import offerings
from provisioner.draft_plan import DraftPlan
from provisioner.model import MINUTE_MS, EndReason, InstanceStatus, ObservedInstance

# EC2 may omit a fresh instance from lists for 40 s.
INVISIBLE_MS = MINUTE_MS

_ENDING = frozenset({InstanceStatus.STOPPING, InstanceStatus.TERMINATING})


class _ReportedEnd(NamedTuple):
    """An end or a stop of an instance that the provisioner has not planned."""

    state: InstanceState
    """The row's new state: ENDED if the instance is gone, else TERMINATING."""
    reason: str
    """The reason for users."""
    counts: bool = True
    """Whether the end affects the health of the offering."""


def apply_observation(draft: DraftPlan, row: InstanceRow) -> None:
    """Store an instance's updated row in `draft`, and update the health of the offering.

    - Set or clear the row's marks, and set the notice, which is never cleared.
    - Move the row to RUNNING once its agent has enrolled.
    - Move the row to TERMINATING if the cloud lists the instance as stopped or ending without a
      request. Also move the row if the instance reported a failed boot and its agent never
      connected.
    - Move the row to ENDED if the cloud lists the instance as terminated, or has not listed the
      instance for INVISIBLE_MS.
    - At the agent's first connection, clear the errors of the offering's health.
    - At the first notice, record an interruption in the health.
    - Record an end that the provisioner did not request, or a failed boot, in the health
      (`_record_unrequested_end`). An instance that only vanished from the list does not count.
    - At the end, offerings that lacked quota may be tried at once (`health_after_freed_quota`).

    The changes do not count against the limit of drains, `draft.tokens`. Each change of the state
    to TERMINATING or ENDED is appended to the draft's reasons. Nothing is stored outside the draft.
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
    end = _find_end(draft, marked, observed)
    if end is None:
        return
    if end.counts:
        _record_unrequested_end(draft, marked)
    if end.state is InstanceState.ENDED:
        # A replacement may have been refused at the notice, when the old instance used the quota.
        for name, health in draft.health.items():
            draft.health[name] = offerings.health_after_freed_quota(health, draft.snapshot.now_ms)
    draft.set_state(marked, end.state, end.reason)


def _find_end(
    draft: DraftPlan, row: InstanceRow, observed: ObservedInstance
) -> _ReportedEnd | None:
    """Return the end that the cloud's list or a boot report shows. Return None without an end.

    The first case that applies decides. The draft is unchanged.

    - The cloud lists the instance as terminated: ENDED.
    - The cloud has not listed the instance for INVISIBLE_MS: ENDED, not counted for the offering.
    - The row is TERMINATING: None.
    - The cloud lists the instance as stopped, stopping or terminating: TERMINATING.
    - The instance reported a failed boot, and its agent never connected: TERMINATING.
    """
    has_failed = bool(observed.boot_report) and row.connected_ms is None
    why = f": {observed.end.text}" if observed.end else ""
    if has_failed:
        why = f" when its boot failed: {observed.boot_error}"
    if observed.status is InstanceStatus.TERMINATED:
        return _ReportedEnd(InstanceState.ENDED, f"the cloud terminated it{why}")
    if _has_vanished(draft, row):
        text = f"the cloud no longer lists it{why}"
        return _ReportedEnd(InstanceState.ENDED, text, counts=False)
    if row.state is InstanceState.TERMINATING:
        return None
    if observed.status is InstanceStatus.STOPPED:
        return _ReportedEnd(InstanceState.TERMINATING, f"it was stopped{why}")
    if observed.status in _ENDING:
        return _ReportedEnd(InstanceState.TERMINATING, f"the cloud is terminating it{why}")
    if has_failed:
        return _ReportedEnd(InstanceState.TERMINATING, f"its boot failed: {observed.boot_error}")
    return None


def _row_with_marks(draft: DraftPlan, row: InstanceRow, observed: ObservedInstance) -> InstanceRow:
    """Return the row, updated by the reports of the cloud and the agent; the draft is unchanged.

    A mark is the time since when a condition holds, or None while the condition does not hold. In a
    TERMINATING row, only the mark `missed_ms` is updated. In any other row:

    - `state`: STARTING becomes RUNNING once the agent has enrolled.
    - `launched_ms`: a time in the future becomes now.
    - `notice_ms`: set by the first notice, and not changed afterwards.
    - `connected_ms`: set when the agent has first enrolled, and never cleared.
    - `idle_ms`: the mark of a connected agent without work.
    - `silent_ms`: the mark of an agent that is not connected and should be (`_is_silent`).
    - `missed_ms`: the mark of an instance that the cloud's list should have and lacks
      (`_is_missing`).
    - `zone`, `uid`: those in the cloud's list, unless the row has them since the launch.
    """
    now_ms, agent = draft.snapshot.now_ms, observed.agent
    missed_ms = _mark_while(row.missed_ms, now_ms, _is_missing(draft, row, observed))
    if row.state is InstanceState.TERMINATING:
        return replace(row, missed_ms=missed_ms)
    has_enrolled = agent is not None or observed.has_enrolled
    state = row.state
    if has_enrolled and state is InstanceState.STARTING:
        state = InstanceState.RUNNING
    return replace(
        row,
        state=state,
        launched_ms=min(row.launched_ms, now_ms),
        connected_ms=_mark_once(row.connected_ms, now_ms, has_enrolled),
        notice_ms=row.notice_ms if row.notice_ms is not None else observed.notice_ms,
        idle_ms=_mark_while(row.idle_ms, now_ms, agent is not None and agent.idle),
        silent_ms=_mark_while(row.silent_ms, now_ms, _is_silent(draft, row, observed)),
        missed_ms=missed_ms,
        zone=row.zone or observed.zone,
        uid=row.uid or observed.uid,
    )


def _is_silent(draft: DraftPlan, row: InstanceRow, observed: ObservedInstance) -> bool:
    """Whether the instance's agent is not connected and should be. The row's state does not matter.

    False while the API is down, and for an agent with a live session that the pool has not
    processed yet. False also for an agent that never enrolled, until the pool's starting period is
    over. The period counts from the launch, or from a later end of an outage or of a gap without
    passes.
    """
    snapshot = draft.snapshot
    if observed.agent is not None or observed.is_joining or snapshot.api_down:
        return False
    if row.connected_ms is not None or observed.has_enrolled:
        return True
    fleet, now_ms = snapshot.fleet, snapshot.now_ms
    age_ms = now_ms - max(row.launched_ms, fleet.resumed_ms, min(fleet.outage_ms, now_ms))
    return age_ms >= snapshot.settings.starting_ms_max


def _is_missing(draft: DraftPlan, row: InstanceRow, observed: ObservedInstance) -> bool:
    """Whether the cloud does not list the instance and should.

    For a TERMINATING row, True whenever the cloud does not list the instance. For any other row,
    False while the agent is connected, and until INVISIBLE_MS after the launch.
    """
    if observed.status is not None:
        return False
    is_fresh = draft.snapshot.now_ms - row.launched_ms < INVISIBLE_MS
    return row.state is InstanceState.TERMINATING or (observed.agent is None and not is_fresh)


def _mark_once(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    """Return the time at which a condition first held, which is kept after the condition's end.

    - The mark is set: return the mark, or `now_ms` if the mark is in the future.
    - The mark is unset: return `now_ms` if the condition holds now (`holds`), else None.
    """
    if mark_ms is None:
        return now_ms if holds else None
    return min(mark_ms, now_ms)


def _mark_while(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    """Return the start of a condition that holds now (`holds`). Return None if the condition fails.

    The start is the mark, or `now_ms` if the mark is unset or in the future.
    """
    return _mark_once(mark_ms, now_ms, holds) if holds else None


def _has_vanished(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether the instance has been missing from the cloud's list for at least INVISIBLE_MS.

    A row has the mark `missed_ms` only while the cloud does not list the instance. A connected
    agent prevents the mark, except in the state TERMINATING. After a gap without passes, the time
    counts from the end of the gap.
    """
    return row.missed_ms is not None and draft.elapsed_ms(row.missed_ms) >= INVISIBLE_MS


def _record_unrequested_end(draft: DraftPlan, row: InstanceRow) -> None:
    """Record an end that the provisioner did not request in the draft's health of the offering.

    The first case that applies decides. The row is unchanged.

    - The row is TERMINATING: do nothing.
    - The agent had connected, a notice was given, or the cloud took the instance back: record an
      interruption.
    - Otherwise count an error (`record_boot_failure`): a failed boot if the instance reported one,
      else an error of the kind of the end's reason, by default also a failed boot.
    """
    if row.state is InstanceState.TERMINATING:
        return
    observed = draft.observation(row)
    is_taken_back = row.notice_ms is not None or (observed.end and observed.end.taken_back)
    if row.connected_ms is not None or is_taken_back:
        _record_interruption(draft, row)
    elif observed.boot_report:
        record_boot_failure(draft, row, f"instance {row.id} failed to boot: {observed.boot_error}")
    else:
        message = f"instance {row.id} ended before its agent enrolled"
        end = observed.end or EndReason("")
        message += f": {end.text}" if end.text else ""
        record_boot_failure(draft, row, message, end.kind)


def _record_interruption(draft: DraftPlan, row: InstanceRow) -> None:
    """Record in the draft that the cloud took away an instance of the row's offering just now.

    Only the health's `interrupted_ms` changes, to the time of the pass. The row is unchanged.
    """
    health = replace(draft.offering_health(row.offering), interrupted_ms=draft.snapshot.now_ms)
    draft.health[row.offering.name] = health


def record_boot_failure(
    draft: DraftPlan, row: InstanceRow, message: str, kind: ErrorKind = ErrorKind.BOOT
) -> None:
    """Count a failed boot, or an error of `kind`, against the instance's offering in the draft.

    The offering gets a new back-off, and may be given up (`health_after_failed_boot`). Do nothing
    in these cases:

    - The API is down, or the instance was launched before the end of the last outage.
    - The instance was launched before the offering's last counted failure of this function. A batch
      of instances that fail for a common reason therefore counts as a single failure.
    """
    snapshot = draft.snapshot
    if snapshot.api_down or row.launched_ms <= min(snapshot.fleet.outage_ms, snapshot.now_ms):
        # The agent could not have enrolled, so the failure says nothing about the offering.
        return
    health = draft.offering_health(row.offering)
    if row.launched_ms <= health.boot_failed_ms:
        # A batch that fails for a common reason counts as a single error.
        return
    failure = offerings.Failure(kind, message, snapshot.now_ms)
    draft.health[row.offering.name] = offerings.health_after_failed_boot(
        health,
        failure,
        snapshot.settings.launch_error_limit,
        snapshot.random,
    )
