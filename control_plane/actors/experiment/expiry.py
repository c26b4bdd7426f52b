"""The end of the retention of an experiment's logs and detailed metrics.

The days count from the end of the experiment, so nothing is deleted while a trial may run. At the
end, the experiment writes a row that expires with the first retention. The pass over expired rows
then sends an ExpiryDue, and the experiment requests a collection (collection.py). The collector
sends each trial a DataExpired, deletes the data, and sends a CollectionEnded. A continued
experiment drops its plan and its request.
"""

from collections.abc import Iterator
from dataclasses import replace

from control_plane.actors.experiment.collection import request_collection
from control_plane.actors.experiment.state import (
    ExperimentState,
    Expiry,
    PlannedExpiry,
    Settings,
    listing_sort_key,
    settings_of,
)
from control_plane.actors.messages.experiment import CollectionEnded
from control_plane.actors.messages.experiment_expiry import ExpiryRequested
from control_plane.actors.records import DataRetention, Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.rows.experiment_rows import RETENTION_END

DAY_MS = 86_400_000


def plan_expiry(
    state: ExperimentState, context: StepContext, *, after_ms: int = 0
) -> ExperimentState:
    """Plan the first end of a retention after `after_ms`, and write or remove the row of the plan.

    Data whose retention has ended by `after_ms` counts as deleted. An experiment that has not
    ended, or is being deleted, has no plan and no request.
    """
    state = _with_expiry(state, until_ms=after_ms)
    if not _can_expire(state):
        return _with_plan(_with_expiry(state, pending=None), None, context)
    assert state.ended_ms is not None
    settings = settings_of(context)
    ends = due_times(state.ended_ms, settings.data_retention, settings)
    due_ms = min((time_ms for time_ms in ends if time_ms > after_ms), default=None)
    return _with_plan(state, None if due_ms is None else PlannedExpiry(due_ms), context)


def apply_expiry_due(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Request the deletion of expired data.

    Nothing is requested before the planned time. The row of the plan is written again then, or
    removed without a plan.
    """
    planned = state.expiry.planned
    if planned is None or not _can_expire(state) or planned.due_ms > context.now_ms:
        return _with_plan(state, planned, context)
    retention = settings_of(context).data_retention
    return _request(state, retention, is_scheduled=planned.is_scheduled, context=context)


def request_expiry(
    state: ExperimentState, message: ExpiryRequested, context: StepContext
) -> ExperimentState:
    """Request the deletion of expired data at once. The reply is whether any retention has ended.

    Raises:
        CommandRefused: conflict; the experiment has not ended, or is being deleted.
    """
    if not _can_expire(state):
        text = f"{state.title} is {state.status}: only data of an ended experiment is deleted"
        raise CommandRefused("conflict", text)
    assert state.ended_ms is not None
    settings = settings_of(context)
    retention = with_defaults(settings.data_retention, message.defaults)
    ends = due_times(state.ended_ms, retention, settings)
    context.reply = any(time_ms <= context.now_ms for time_ms in ends)
    if not context.reply:
        return state
    return _request(state, retention, is_scheduled=True, context=context)


def finish_expiry(
    state: ExperimentState, message: CollectionEnded, context: StepContext
) -> ExperimentState:
    """Record the deletion of expired data, and plan the next end of a retention.

    If the collector waits for the cluster's schedule, plan the time of the schedule instead. Return
    the state unchanged if the collection was no request of expired data, or failed.
    """
    expiry = state.expiry.pending
    if expiry is None or message.failure:
        return state
    state = _with_expiry(state, pending=None)
    if message.expires_ms:
        planned = PlannedExpiry(message.expires_ms, is_scheduled=True)
        return _with_plan(state, planned if _can_expire(state) else None, context)
    ended_ms = state.ended_ms
    if ended_ms is not None and is_due(ended_ms, expiry.log_days, expiry.until_ms):
        context.add_reason("the logs were deleted: their retention has ended")
        state = _with_expiry(state, logs_deleted_ms=context.now_ms)
    if ended_ms is not None and is_due(ended_ms, expiry.metrics_days, expiry.until_ms):
        context.add_reason("detailed metrics were deleted: their retention has ended")
        state = _with_expiry(state, metrics_deleted_ms=context.now_ms)
    return plan_expiry(state, context, after_ms=expiry.until_ms)


def is_due(ended_ms: int, days: int | None, until_ms: int) -> bool:
    """Return whether a retention ends by `until_ms`. None and -1 days never end."""
    return days is not None and days >= 0 and ended_ms + days * DAY_MS <= until_ms


def due_times(ended_ms: int, retention: DataRetention, settings: Settings) -> Iterator[int]:
    """Yield the ends of all retentions, in epoch ms, in no order.

    Args:
        ended_ms: the end of the experiment.
        retention: the days of the experiment.
        settings: the settings with the days of single trials.
    """
    trial_days = (days for _, days in settings.trial_log_days)
    for days in (retention.log_days, retention.metrics_days, *trial_days):
        if days is not None and days >= 0:
            yield ended_ms + days * DAY_MS


def with_defaults(retention: DataRetention, defaults: DataRetention) -> DataRetention:
    """Return the retention with the defaults in place of days that are not set."""
    return DataRetention(
        defaults.log_days if retention.log_days is None else retention.log_days,
        defaults.metrics_days if retention.metrics_days is None else retention.metrics_days,
    )


def _can_expire(state: ExperimentState) -> bool:
    """Return whether the experiment has ended and still has data."""
    is_deleting = state.status in (Status.DELETING, Status.DELETED)
    return state.status.is_final and not is_deleting and state.ended_ms is not None


def _request(
    state: ExperimentState, retention: DataRetention, *, is_scheduled: bool, context: StepContext
) -> ExperimentState:
    """Request a collection that deletes the data that has expired by now."""
    expiry = Expiry(
        until_ms=context.now_ms,
        log_days=retention.log_days,
        metrics_days=retention.metrics_days,
        is_scheduled=is_scheduled,
    )
    state = _with_plan(_with_expiry(state, pending=expiry), None, context)
    return request_collection(state, context)


def _with_plan(
    state: ExperimentState, planned: PlannedExpiry | None, context: StepContext
) -> ExperimentState:
    """Return the state with a plan, and write the row of the plan, or remove the row."""
    sort = listing_sort_key(state.experiment_id)
    if planned is not None:
        body = str(planned.due_ms).encode()
        context.write_row(RETENTION_END.partition, sort, body, expires_ms=planned.due_ms)
    elif state.expiry.planned is not None:
        context.write_row(RETENTION_END.partition, sort, None)
    return _with_expiry(state, planned=planned)


def _with_expiry(state: ExperimentState, **changes: object) -> ExperimentState:
    """Return the state with changed fields of `data_expiry`. Equal fields change nothing."""
    expiry = replace(state.expiry, **changes)  # type: ignore[arg-type]
    return state if expiry == state.expiry else evolve(state, data_expiry=expiry)
