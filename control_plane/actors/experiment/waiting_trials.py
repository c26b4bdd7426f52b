"""Trials of a continued experiment that wait for a place.

A continuation opens at most as many trials at a time as the search allows. The other trials that
did not complete keep their final status until another trial ends. The search counts them as open.
"""

from collections.abc import Iterator
from typing import NamedTuple

from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.trial_summaries import TrialSummary, open_summary
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.method import ExitReason, Tally, TrialExitedEarly


class EndedTrial(NamedTuple):
    """A trial that has ended, with the number in the search."""

    number: int
    """The number of the trial within the experiment."""
    summary: TrialSummary


def waiting_trials(state: ExperimentState, context: StepContext) -> Iterator[EndedTrial]:
    """Iterate over the trials that still wait for a place after a continuation, by number.

    The state must be that of an experiment with `first_waiting_trial` of 0 or more.
    """
    for number in range(state.first_waiting_trial, state.trials):
        summary = open_summary(number, state.run_generation, context)
        if summary is not None and summary.status:
            yield EndedTrial(number, summary)


def close_waiting(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Count the waiting trials as ended in the search and the head, and return the state.

    Each trial keeps the status and the reason of the earlier end. No message is sent. An experiment
    without waiting trials stays unchanged.
    """
    if state.first_waiting_trial < 0:
        return state
    for number, summary in waiting_trials(state, context):
        reason = exit_reason(summary, state.search.tally) or ExitReason.USER_CANCELED
        event = TrialExitedEarly(number, reason, summary.units, summary.reached)
        state = evolve(
            state,
            search=search.count_event(state.search, event),
            trials_open=state.trials_open - 1,
            trials_errored=state.trials_errored + (summary.status == Status.ERROR),
        )
    return evolve(state, first_waiting_trial=state.trials)


def exit_reason(summary: TrialSummary, tally: Tally) -> ExitReason | None:
    """Return the exit reason with which the search counted the trial's end.

    Return None for an ordinary end. A completed trial can only be reopened in a search with a
    single trial, so the tally has the reason of that trial.
    """
    if summary.status == Status.ERROR:
        return ExitReason.ERRORED
    if summary.status == Status.CANCELED:
        return ExitReason.USER_CANCELED
    if tally.invalid:
        return ExitReason.INVALID_HP
    return ExitReason.USER_REQUESTED_STOP if tally.exited else None
