"""Observations: what the cloud and the agents report of instances, as marks, ends and faults. Pure.

A mark is the time since when something holds; one from a clock that was ahead is of now.
"""

from dataclasses import replace

from control_plane.fleet.records import ErrorKind, InstanceRow, InstanceState
from provisioner import offerings
from provisioner.draft_plan import DraftPlan
from provisioner.model import MINUTE_MS, EndReason, InstanceStatus, ObservedInstance

# A fresh instance may be missing from the cloud's lists for 40 s.
INVISIBLE_MS = MINUTE_MS

_ENDING = frozenset({InstanceStatus.STOPPING, InstanceStatus.TERMINATING})


def apply_observation(draft: DraftPlan, row: InstanceRow) -> None:
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
    why = f": {observed.end.text}" if observed.end else ""
    if observed.boot_report and marked.connected_ms is None:
        why = f" when its boot failed: {observed.boot_error}"
    if observed.status is InstanceStatus.TERMINATED:
        _record_unrequested_end(draft, marked)
        draft.set_state(marked, InstanceState.ENDED, f"the cloud terminated it{why}")
    elif _has_vanished(draft, marked):
        draft.set_state(marked, InstanceState.ENDED, "the cloud no longer knows it")
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
    """The mark, set now if it is not yet; one that a clock which was ahead has set is of now."""
    if mark_ms is None:
        return now_ms if holds else None
    return min(mark_ms, now_ms)


def _mark_while(mark_ms: int | None, now_ms: int, holds: bool) -> int | None:
    return _mark_once(mark_ms, now_ms, holds) if holds else None


def _has_vanished(draft: DraftPlan, row: InstanceRow) -> bool:
    return row.missed_ms is not None and draft.elapsed_ms(row.missed_ms) >= INVISIBLE_MS


def _record_unrequested_end(draft: DraftPlan, row: InstanceRow) -> None:
    """Record that an instance ends without our request."""
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
    health = replace(draft.offering_health(row.offering), interrupted_ms=draft.snapshot.now_ms)
    draft.health[row.offering.name] = health


def record_boot_failure(
    draft: DraftPlan, row: InstanceRow, message: str, kind: ErrorKind = ErrorKind.BOOT
) -> None:
    snapshot = draft.snapshot
    if snapshot.api_down or row.launched_ms <= min(snapshot.fleet.outage_ms, snapshot.now_ms):
        # It could not have enrolled, whatever its offering is worth.
        return
    health = draft.offering_health(row.offering)
    if row.launched_ms <= health.boot_failed_ms:
        # Launched before the error that is known already: it says nothing new of the offering.
        return
    failure = offerings.Failure(kind, message, snapshot.now_ms)
    draft.health[row.offering.name] = offerings.health_after_failed_boot(
        health,
        failure,
        snapshot.settings.launch_error_limit,
        snapshot.random,
    )
