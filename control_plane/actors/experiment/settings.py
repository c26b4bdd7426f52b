"""Changes of an experiment's settings that users may make at any time."""

from dataclasses import replace
from decimal import Decimal, InvalidOperation

from control_plane.actors.content_revision import content_revision, find_changed_since
from control_plane.actors.cost import to_micros
from control_plane.actors.experiment.collection import request_collection
from control_plane.actors.experiment.cost_limit import apply_changed_limit
from control_plane.actors.experiment.expiry import plan_expiry, with_defaults
from control_plane.actors.experiment.job import effective_job, write_job_row
from control_plane.actors.experiment.listing import write_listing_row
from control_plane.actors.experiment.metadata_rows import write_metadata_rows
from control_plane.actors.experiment.state import (
    ExperimentState,
    Settings,
    definition_of,
    settings_of,
)
from control_plane.actors.job_row import order_revision
from control_plane.actors.messages.experiment import SettingsChanged
from control_plane.actors.projects import find_name_problem
from control_plane.actors.records import RETENTION_DAYS_MAX, DataRetention, Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve

# Priority 1 is the most urgent.
PRIORITY_MIN, PRIORITY_MAX = 1, 99
TRIAL_LOG_DAYS_MAX = 1_000
"""The most trials of an experiment whose logs have their own retention."""
# Settings that the message replaces as a whole.
_PLAIN_SETTINGS = ("retention", "description", "labels", "workspace", "project", "metadata")
_ARCHIVABLE = (Status.COMPLETED, Status.CANCELED, Status.ERROR)


def change_settings(
    state: ExperimentState, message: SettingsChanged, context: StepContext
) -> ExperimentState:
    """Change settings of an experiment. The reply is the experiment's id.

    The part `settings`, the listing row, the metadata rows and the job row are written if their
    values change, and the pool gets a JobChanged. A new cost limit may pause the experiment. A
    message with a retention requests a checkpoint collection, even if the numbers are unchanged.
    Another retention of logs or metrics plans their deletion again.
    Unchanged settings write nothing.

    Raises:
        CommandRefused: conflict, if the experiment is being deleted. conflict also if the
            experiment or the job has another revision than the message names.
        CommandRefused: invalid, if a value is out of range, or the metadata has too many terms. A
            `max_slots` below the slots of a single trial is out of range.
    """
    context.reply = state.experiment_id
    if state.status is Status.DELETING:
        raise CommandRefused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status} and can no longer be changed",
        )
    _check_cost(message)
    before = settings_of(context)
    title, revision = f"experiment {state.experiment_id}", remarks_revision(state, before)
    if problem := find_changed_since(title, revision, message.revision):
        raise CommandRefused("conflict", problem)
    _check_job_revision(state, before, message, context)
    after = _merge_settings(before, message)
    name = state.name if message.name is None else message.name
    if after == before and name == state.name and message.retention is None:
        return state
    _check_limit(after, context)
    _check_retention(message, after)
    _check_job(after)
    _check_groups(message)
    if after != before:
        context.write_part("settings", after)
        write_metadata_rows(state.experiment_id, before.metadata, after.metadata, context)
    if name != state.name or _listing_settings(after) != _listing_settings(before):
        state = write_listing_row(evolve(state, name=name), context)
    definition = definition_of(context)
    jobs = [
        effective_job(definition.job, definition.settings, settings) for settings in (before, after)
    ]
    if jobs[0] != jobs[1] and not state.status.is_final:
        write_job_row(state, context)
    if after.max_cost_micros != before.max_cost_micros:
        state = apply_changed_limit(state, context)
    state = _plan_expiry_again(state, before, after, context)
    if message.retention is not None:
        # Unchanged numbers also request a collection: users delete excess checkpoints this way.
        state = request_collection(state, context)
    return state


def remarks_revision(state: ExperimentState, settings: Settings) -> str:
    """Return the revision of the texts that users edit.

    The texts are the name, the description, the labels, the metadata, the workspace and the
    project.
    """
    texts = (settings.description, settings.labels, settings.metadata)
    return content_revision([state.name, *texts, settings.workspace, settings.project])


def set_archived(state: ExperimentState, archived: bool, context: StepContext) -> ExperimentState:
    """Archive an ended experiment, or undo that, and update the listing row. The reply is the
    experiment's id.

    A repeated command changes nothing.

    Raises:
        CommandRefused: conflict; the experiment has not ended, or is being deleted.
    """
    context.reply = state.experiment_id
    if state.status not in _ARCHIVABLE:
        verb = "archived" if archived else "unarchived"
        raise CommandRefused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status}: only an experiment in state "
            f"COMPLETED, CANCELED or ERROR can be {verb}",
        )
    if state.archived is archived:
        return state
    return write_listing_row(evolve(state, archived=archived), context)


def _plan_expiry_again(
    state: ExperimentState, before: Settings, after: Settings, context: StepContext
) -> ExperimentState:
    """Plan the deletion of logs and metrics again after a change of the retention."""
    days = [(one.data_retention, one.trial_log_days) for one in (before, after)]
    return state if days[0] == days[1] else plan_expiry(state, context)


def _listing_settings(settings: Settings) -> tuple[object, ...]:
    """Return the settings that the listing row contains."""
    return settings.labels, settings.workspace, settings.project


def _merge_settings(settings: Settings, message: SettingsChanged) -> Settings:
    """Return the settings with the changes of the message, unchecked."""
    values = {name: getattr(message, name) for name in _PLAIN_SETTINGS}
    changes = {name: value for name, value in values.items() if value is not None}
    if message.max_slots_given:
        changes["max_slots"] = message.max_slots
    if message.data_retention is not None:
        changes["data_retention"] = with_defaults(message.data_retention, settings.data_retention)
    if message.trial_log_days is not None:
        trial_id, _ = message.trial_log_days
        others = [days for days in settings.trial_log_days if days[0] != trial_id]
        changes["trial_log_days"] = (*others, message.trial_log_days)
    return _merge_job_settings(replace(settings, **changes), message)


def _merge_job_settings(settings: Settings, message: SettingsChanged) -> Settings:
    """Return the settings with the message's changes of the job and the cost limit.

    Another priority resets the position to the time of submission, unless the message keeps or sets
    the position.
    """
    if message.max_cost_given:
        limit = None if message.max_cost is None else to_micros(message.max_cost)
        settings = replace(settings, max_cost_micros=limit)
    if message.weight is not None:
        settings = replace(settings, weight=message.weight)
    if message.priority is not None and message.priority != settings.priority:
        position = settings.position if message.keep_position else None
        settings = replace(settings, priority=message.priority, position=position)
    if message.position is not None:
        settings = replace(settings, position=message.position)
    return settings


def _check_job_revision(
    state: ExperimentState, settings: Settings, message: SettingsChanged, context: StepContext
) -> None:
    """Check that the job's weight, priority and position have the revision of the message.

    Raises:
        CommandRefused: conflict; the message names another revision.
    """
    if message.job_revision is None:
        return
    definition = definition_of(context)
    job = effective_job(definition.job, definition.settings, settings)
    present = order_revision(job.weight, job.priority, job.queue_position())
    title = f"job {state.experiment_id}"
    if problem := find_changed_since(title, present, message.job_revision):
        raise CommandRefused("conflict", problem)


def _check_cost(message: SettingsChanged) -> None:
    """Check that a new cost limit is a positive finite amount of dollars. None means no limit.

    Raises:
        CommandRefused: invalid; the limit is another number.
    """
    limit = message.max_cost
    if limit is not None and not 0 < limit < float("inf"):
        raise CommandRefused("invalid", f"max_cost must be an amount greater than 0, not {limit}")


def _check_retention(message: SettingsChanged, after: Settings) -> None:
    """Check that each new number of days is from -1 to RETENTION_DAYS_MAX.

    Raises:
        CommandRefused: invalid; a number is out of range, or more than TRIAL_LOG_DAYS_MAX trials
            have their own days.
    """
    if len(after.trial_log_days) > TRIAL_LOG_DAYS_MAX:
        text = f"at most {TRIAL_LOG_DAYS_MAX} trials of an experiment have their own log retention"
        raise CommandRefused("invalid", text)
    retention = message.data_retention or DataRetention()
    trial_days = None if message.trial_log_days is None else message.trial_log_days[1]
    for days in (retention.log_days, retention.metrics_days, trial_days):
        if days is not None and not -1 <= days <= RETENTION_DAYS_MAX:
            text = f"a retention must be from -1 to {RETENTION_DAYS_MAX} days, not {days}"
            raise CommandRefused("invalid", text)


def _check_groups(message: SettingsChanged) -> None:
    """Check the new names of workspace and project.

    Raises:
        CommandRefused: invalid; a name is invalid (`find_name_problem`).
    """
    for kind, name in (("workspace", message.workspace), ("project", message.project)):
        if name is not None and (problem := find_name_problem(name)):
            raise CommandRefused("invalid", f"{kind} {name!a:.140} {problem}")


def _check_job(settings: Settings) -> None:
    """Check weight, priority and position.

    Raises:
        CommandRefused: invalid; the weight is not positive and finite, the priority is out of
            range, or the position is no decimal number.
    """
    # The comparison also refuses NaN.
    if not 0 < settings.weight < float("inf"):
        raise CommandRefused("invalid", f"weight must be greater than 0, not {settings.weight}")
    priority = settings.priority
    if priority is not None and not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        text = f"priority must be between {PRIORITY_MIN} and {PRIORITY_MAX}, not {priority}"
        raise CommandRefused("invalid", text)
    if settings.position is not None and not _is_number(settings.position):
        text = f"position must be a decimal number, not {settings.position!r:.40}"
        raise CommandRefused("invalid", text)


def _is_number(text: str) -> bool:
    """Return whether the text is a finite decimal number."""
    try:
        return Decimal(text).is_finite()
    except InvalidOperation:
        return False


def _check_limit(settings: Settings, context: StepContext) -> None:
    """Check that `max_slots` allows at least a single trial.

    Raises:
        CommandRefused: invalid; `max_slots` is below the slots of a trial.
    """
    slots = definition_of(context).settings.slots
    if settings.max_slots is not None and settings.max_slots < slots:
        raise CommandRefused(
            "invalid",
            f"max_slots: must be at least slots_per_trial ({slots}), not {settings.max_slots}:"
            " no trial could ever start",
        )
