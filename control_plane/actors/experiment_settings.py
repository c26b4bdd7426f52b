"""Changing what a user may change of an experiment at any time."""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.experiment_deletion import collected
from control_plane.actors.experiment_messages import SettingsChanged
from control_plane.actors.experiment_state import (
    ExperimentState,
    Settings,
    definition_of,
    listed,
    settings_of,
)
from control_plane.actors.experiment_summaries import summaries
from control_plane.actors.pool_messages import GroupLimited
from control_plane.actors.records import Status
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_messages import SlotsLimited
from control_plane.evolve import evolve

_ARCHIVABLE = (Status.COMPLETED, Status.CANCELED, Status.ERROR)


def changed(state: ExperimentState, message: SettingsChanged, turn: Turn) -> ExperimentState:
    """Takes the new settings; those that concern what runs are in force at once.

    Raises:
        Refused: conflict for an experiment that is being deleted; invalid for a limit of slots
            below what one trial needs.
    """
    turn.reply = state.experiment_id
    if state.status is Status.DELETING:
        raise Refused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status} and can no longer be changed",
        )
    before = settings_of(turn)
    after = _merged(before, message)
    name = state.name if message.name is None else message.name
    if after == before and name == state.name and message.retention is None:
        return state
    _check_limit(after, turn)
    if after != before:
        turn.write_part("settings", after)
    if (name, after.labels) != (state.name, before.labels):
        state = listed(evolve(state, name=name), turn)
    if after.max_slots != before.max_slots:
        _limit(state, after.max_slots, turn)
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
    return settings if message.labels is None else replace(settings, labels=message.labels)


def _check_limit(settings: Settings, turn: Turn) -> None:
    slots = definition_of(turn).settings.slots
    if settings.max_slots is not None and settings.max_slots < slots:
        raise Refused(
            "invalid",
            f"max_slots: must be at least slots_per_trial ({slots}), not {settings.max_slots}:"
            " no trial could ever start",
        )


def _limit(state: ExperimentState, max_slots: int | None, turn: Turn) -> None:
    """The pool acts on the limit now; the trials repeat it with whatever they ask for later."""
    turn.send(addresses.pool(state.pool), GroupLimited(state.experiment_id, max_slots))
    if state.trials_open:
        for summary in summaries(state.trials, turn):
            if summary.is_open(state.life):
                turn.send(addresses.trial(summary.trial_id), SlotsLimited(max_slots))
