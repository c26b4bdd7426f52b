"""What a trial's training reports: validations, lengths reached, checkpoints."""

from collections.abc import Mapping

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import TrialLengthReached, TrialValidated
from control_plane.actors.records import TrialSettings, worst_metric
from control_plane.actors.step import Turn
from control_plane.actors.trial_checkpoints import checkpointed, measured
from control_plane.actors.trial_messages import (
    CheckpointReported,
    LengthReported,
    ValidationReported,
)
from control_plane.actors.trial_state import TrialState
from control_plane.evolve import evolve
from control_plane.searchers.method import ENDLESS


def reported(
    state: TrialState,
    message: ValidationReported | LengthReported | CheckpointReported,
    turn: Turn,
) -> TrialState:
    """Takes a report of the current allocation."""
    match message:
        case ValidationReported():
            return _validated(state, message, turn)
        case LengthReported():
            return _reached(state, message, turn)
        case CheckpointReported():
            return checkpointed(state, message, turn)


def batches_of(
    settings: TrialSettings, hparams: Mapping[str, object], length: int | None
) -> int | None:
    """A length of the configured unit in batches; None stays None."""
    if length is None or length == ENDLESS:
        return length
    return settings.lengths.batches(length, hparams)


def reached_already(state: TrialState, turn: Turn) -> None:
    """A length of more records or epochs can come to no more batches: the trial stands there, and
    its validation there answers the search.
    """
    if state.length is None or state.length > state.reached:
        return
    metric = state.metric if state.metric_steps == state.reached else None
    _told_search(state, metric, "", turn)


def cannot_begin(state: TrialState, parent: int, turn: Turn) -> None:
    """A copy of a trial without a checkpoint is none, which ends the search."""
    lack = (
        f"it is to begin as a copy of trial {parent}, which has no checkpoint: write one before "
        "the metric of a length is reported"
    )
    _told_search(state, None, lack, turn)


def _validated(state: TrialState, message: ValidationReported, turn: Turn) -> TrialState:
    steps = max(state.steps, message.steps)
    best = state.best_metric
    if message.metric is not None:
        smaller = state.settings.smaller_is_better
        if best is None or (message.metric < best if smaller else message.metric > best):
            best = message.metric
    measured(state, message, turn)
    units = _units(state, message.steps)
    validated = TrialValidated(state.number, units, message.metric, message.time, message.lack)
    turn.send(addresses.experiment(state.experiment_id), validated)
    return evolve(
        state,
        steps=steps,
        metric=message.metric,
        metric_steps=message.steps,
        best_metric=best,
    )


def _reached(state: TrialState, message: LengthReported, turn: Turn) -> TrialState:
    """The operation is done, once: after a rollback the search does not see it again."""
    if state.length is None or message.length != state.length or message.length <= state.reached:
        return state
    if state.length == ENDLESS:
        # Its end is its own business.
        return state
    _told_search(state, message.metric, message.lack, turn)
    if message.lack:
        # Nothing was reached: the experiment ends of it.
        return state
    return evolve(state, reached=message.length, steps=max(state.steps, message.length))


def _told_search(state: TrialState, metric: float | None, lack: str, turn: Turn) -> None:
    assert state.length_units is not None
    if metric is None:
        metric = worst_metric(state.settings.smaller_is_better)
    units, closed = state.length_units, state.closed
    reached = TrialLengthReached(state.number, units, metric, closed, lack)
    turn.send(addresses.experiment(state.experiment_id), reached)


def _units(state: TrialState, batches: int) -> float:
    return state.settings.lengths.units(batches, state.hparams)
