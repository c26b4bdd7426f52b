"""Updates of instance rows and offering health from the reports of clouds and agents. Pure.

A mark is the time at which a condition began, such as an agent's idleness. A mark in the future
comes from a clock that was ahead; it is replaced by the current time.
"""

from dataclasses import replace

from control_plane.fleet.records import ErrorKind, InstanceRow, InstanceState
from provisioner import offerings
from provisioner.draft_plan import DraftPlan
from provisioner.model import MINUTE_MS, EndReason, InstanceStatus, ObservedInstance

# EC2 may omit a fresh instance from lists for 40 s.
INVISIBLE_MS = MINUTE_MS

_ENDING = frozenset({InstanceStatus.STOPPING, InstanceStatus.TERMINATING})


def apply_observation(draft: DraftPlan, row: InstanceRow) -> None:
    """Store an instance's updated row in `draft`, and update the health of the offering.

    - Set or clear the row's marks, and set the notice, which is never cleared.
    - Move the row to RUNNING once its agent has enrolled.
    - Move the row to TERMINATING if the cloud lists the instance as stopped or ending without a
      request, or if the instance reported a failed boot and its agent never connected.
    - Move the row to ENDED if the cloud lists the instance as terminated, or has not listed the
      instance for INVISIBLE_MS.
    - At the agent's first connection, clear the errors of the offering's health.
    - At the first notice, record an interruption in the health. Also record ends that the
      provisioner did not request: as an interruption after a connection, else as an error. An
      instance that only vanished from the list counts as neither.

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
    why = f": {observed.end.text}" if observed.end else ""
    if observed.boot_report and marked.connected_ms is None:
        why = f" when its boot failed: {observed.boot_error}"
    if observed.status is InstanceStatus.TERMINATED:
        _record_unrequested_end(draft, marked)
        draft.set_state(marked, InstanceState.ENDED, f"the cloud terminated it{why}")
    elif _has_vanished(draft, marked):
        draft.set_state(marked, InstanceState.ENDED, f"the cloud no longer lists it{why}")
    elif marked.state is InstanceState.TERMINATING:
        return
    elif observed.status is InstanceStatus.STOPPED:
        _record_unrequested_end(draft, marked)
        draft.set_state(marked, InstanceState.TERMINATING, f"it was stopped{why}")
    elif observed.status in _ENDING:
        _record_unrequested_end(draft, marked)
        draft.set_state(marked, InstanceState.TERMINATING, f"the cloud is terminating it{why}")
    elif observed.boot_report and marked.connected_ms is None:
        _record_unrequested_end(draft, marked)
        error = f"its boot failed: {observed.boot_error}"
        draft.set_state(marked, InstanceState.TERMINATING, error)


def _row_with_marks(draft: DraftPlan, row: InstanceRow, observed: ObservedInstance) -> InstanceRow:
    """Return the row with updated marks. STARTING becomes RUNNING once the agent has enrolled.

    A mark is the time at which a condition began; it is None while the condition does not hold.

    - `connected_ms`: the agent's first enrolment, which stays.
    - `idle_ms`: since when a connected agent has no work.
    - `silent_ms`: since when the agent is not connected. None while the API is down, and before an
      agent that never connected has had the pool's starting period.
    - `missed_ms`: since when the cloud does not list the instance. None while the agent is
      connected, and until INVISIBLE_MS after the launch.

    For a TERMINATING instance, only `missed_ms` is updated, also with a connected agent. A first
    notice is kept, and a launch time in the future becomes now. The draft is unchanged.
    """
    now_ms, agent = draft.snapshot.now_ms, observed.agent
    if row.state is InstanceState.TERMINATING:
        return replace(row, missed_ms=_mark_while(row.missed_ms, now_ms, observed.status is None))
    is_fresh = now_ms - row.launched_ms < INVISIBLE_MS
    missing = observed.status is None and agent is None and not is_fresh
    fleet, api_down = draft.snapshot.fleet, draft.snapshot.api_down
    age_ms = now_ms - max(row.launched_ms, fleet.resumed_ms, min(fleet.outage_ms, now_ms))
    state = row.state
    has_enrolled = agent is not None or observed.has_enrolled
    connected_ms = _mark_once(row.connected_ms, now_ms, has_enrolled)
    is_late = connected_ms is not None or age_ms >= draft.snapshot.settings.starting_ms_max
    is_silent = agent is None and not observed.is_joining and is_late and not api_down
    if has_enrolled and state is InstanceState.STARTING:
        state = InstanceState.RUNNING
    return replace(
        row,
        state=state,
        launched_ms=min(row.launched_ms, now_ms),
        connected_ms=connected_ms,
        notice_ms=row.notice_ms if row.notice_ms is not None else observed.notice_ms,
        idle_ms=_mark_while(row.idle_ms, now_ms, agent is not None and agent.idle),
        silent_ms=_mark_while(row.silent_ms, now_ms, is_silent),
        missed_ms=_mark_while(row.missed_ms, now_ms, missing),
    )


def _mark_once(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    """Return the mark, or `now_ms` if the mark is in the future, or is unset and `holds` is true.

    A mark is the time at which a condition began, and `holds` is whether the condition holds now.
    Return None if the mark is unset and the condition does not hold. A set mark stays, also if the
    condition no longer holds.
    """
    if mark_ms is None:
        return now_ms if holds else None
    return min(mark_ms, now_ms)


def _mark_while(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    """Return the mark, or `now_ms` if the mark is unset or in the future.

    A mark is the time at which a condition began. Return None if the condition no longer holds
    (`holds`).
    """
    return _mark_once(mark_ms, now_ms, holds) if holds else None


def _has_vanished(draft: DraftPlan, row: InstanceRow) -> bool:
    """Whether the instance has been missing from the cloud's list for at least INVISIBLE_MS.

    A row has the mark `missed_ms` only while the cloud does not list the instance. A connected
    agent prevents the mark, except in the state TERMINATING.
    """
    return row.missed_ms is not None and draft.elapsed_ms(row.missed_ms) >= INVISIBLE_MS


def _record_unrequested_end(draft: DraftPlan, row: InstanceRow) -> None:
    """Record an end that the provisioner did not request in the draft's health of the offering.

    The end counts as an interruption if the agent had connected, a notice was given, or the cloud
    took the instance back. Otherwise the end counts as an error of the cloud's kind, a failed boot
    by default. `record_boot_failure` excludes instances that were launched before an outage or
    before the offering's last counted failure. Do nothing for a TERMINATING instance. The row is
    unchanged.
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
    while the API is down, or if the instance was launched before the end of the last outage. Do
    nothing also if the launch was before the offering's last counted failed boot.
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
