"""Changing what a user may change of an experiment at any time."""

from dataclasses import replace
from decimal import Decimal, InvalidOperation

from control_plane.actors.cost import micros_of
from control_plane.actors.experiment_deletion import collected
from control_plane.actors.experiment_job import job_now, published
from control_plane.actors.experiment_limit import relimited
from control_plane.actors.experiment_messages import SettingsChanged
from control_plane.actors.experiment_state import (
    ExperimentState,
    Settings,
    definition_of,
    listed,
    settings_of,
)
from control_plane.actors.records import Status
from control_plane.actors.step import Refused, Turn
from control_plane.evolve import evolve

# 1 is served first.
PRIORITY_MIN, PRIORITY_MAX = 1, 99
_ARCHIVABLE = (Status.COMPLETED, Status.CANCELED, Status.ERROR)


def changed(state: ExperimentState, message: SettingsChanged, turn: Turn) -> ExperimentState:
    """Takes the new settings; those that concern what runs are in force at once.

    Raises:
        Refused: conflict for an experiment that is being deleted; invalid for a limit of slots
            below what one trial needs, and for what no job can have.
    """
    turn.reply = state.experiment_id
    if state.status is Status.DELETING:
        raise Refused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status} and can no longer be changed",
        )
    _check_cost(message)
    before = settings_of(turn)
    after = _merged(before, message)
    name = state.name if message.name is None else message.name
    if after == before and name == state.name and message.retention is None:
        return state
    _check_limit(after, turn)
    _check_job(after)
    if after != before:
        turn.write_part("settings", after)
    if (name, after.labels) != (state.name, before.labels):
        state = listed(evolve(state, name=name), turn)
    definition = definition_of(turn)
    jobs = [job_now(definition.job, definition.settings, settings) for settings in (before, after)]
    if jobs[0] != jobs[1] and not state.status.final:
        published(state, turn)
    if after.max_cost_micros != before.max_cost_micros:
        state = relimited(state, turn)
    if message.retention is not None:
        # The same numbers again: what is beyond them by now goes at once all the same.
        state = collected(state, turn)
    return state


def archived(state: ExperimentState, wanted: bool, turn: Turn) -> ExperimentState:
    """Leaves an ended experiment out of the list, or lists it again; Refused for any other."""
    turn.reply = state.experiment_id
    if state.status not in _ARCHIVABLE:
        verb = "archived" if wanted else "unarchived"
        raise Refused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status}: only one that is COMPLETED,"
            f" CANCELED or ERROR can be {verb}",
        )
    return state if state.archived is wanted else listed(evolve(state, archived=wanted), turn)


def _merged(settings: Settings, message: SettingsChanged) -> Settings:
    if message.max_slots_given:
        settings = replace(settings, max_slots=message.max_slots)
    if message.retention is not None:
        settings = replace(settings, retention=message.retention)
    if message.description is not None:
        settings = replace(settings, description=message.description)
    if message.labels is not None:
        settings = replace(settings, labels=message.labels)
    return _scheduled(settings, message)


def _scheduled(settings: Settings, message: SettingsChanged) -> Settings:
    """What concerns schedulers. A job of another priority stands there as it was submitted."""
    if message.max_cost_given:
        limit = None if message.max_cost is None else micros_of(message.max_cost)
        settings = replace(settings, max_cost_micros=limit)
    if message.weight is not None:
        settings = replace(settings, weight=message.weight)
    if message.priority is not None and message.priority != settings.priority:
        position = settings.position if message.keep_position else None
        settings = replace(settings, priority=message.priority, position=position)
    if message.position is not None:
        settings = replace(settings, position=message.position)
    return settings


def _check_cost(message: SettingsChanged) -> None:
    limit = message.max_cost
    if limit is not None and not 0 < limit < float("inf"):
        raise Refused("invalid", f"max_cost must be an amount greater than 0, not {limit}")


def _check_job(settings: Settings) -> None:
    # Not a number is no weight either.
    if not 0 < settings.weight < float("inf"):
        raise Refused("invalid", f"weight must be greater than 0, not {settings.weight}")
    priority = settings.priority
    if priority is not None and not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        text = f"priority must be between {PRIORITY_MIN} and {PRIORITY_MAX}, not {priority}"
        raise Refused("invalid", text)
    if settings.position is not None and not _is_number(settings.position):
        text = f"position must be a decimal number, not {settings.position!r:.40}"
        raise Refused("invalid", text)


def _is_number(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except InvalidOperation:
        return False


def _check_limit(settings: Settings, turn: Turn) -> None:
    slots = definition_of(turn).settings.slots
    if settings.max_slots is not None and settings.max_slots < slots:
        raise Refused(
            "invalid",
            f"max_slots: must be at least slots_per_trial ({slots}), not {settings.max_slots}:"
            " no trial could ever start",
        )
