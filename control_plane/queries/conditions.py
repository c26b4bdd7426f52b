"""Conditions: the words by which users see the state of an experiment, a trial or a job.

The stored status of an experiment or trial does not change by these words. API answers have both:
`state` is the stored status, and `condition` is the word.
"""

from typing import Final, Literal, NamedTuple, get_args

from control_plane.actors.experiment.state import Definition
from control_plane.actors.records import Status
from control_plane.actors.trial.state import (
    Allocation,
    AllocationState,
    DesiredState,
    TrialState,
)
from control_plane.searchers.registry import spec_of_plan

TrialCondition = Literal[
    "running",
    "starting",
    "queued",
    "waiting at a rung",
    "waiting for the search",
    "waiting to restart",
    "preempted",
    "pausing",
    "paused",
    "stopping",
    "stopped by the search",
    "finished",
    "canceled",
    "failed",
]
"""The condition of a trial. docs/how-it-works.md describes each word."""

ExperimentCondition = Literal[
    "running",
    "queued",
    "waiting",
    "paused",
    "stopping",
    "finished",
    "canceled",
    "failed",
    "deleting",
    "deletion failed",
    "deleted",
]
"""The condition of an experiment, command, notebook or shell, and of its job."""

EXPERIMENT_CONDITIONS: Final[tuple[ExperimentCondition, ...]] = get_args(ExperimentCondition)
TRIAL_CONDITIONS: Final[tuple[TrialCondition, ...]] = get_args(TrialCondition)

_BY_STATUS: Final[dict[Status, ExperimentCondition]] = {
    Status.PAUSED: "paused",
    Status.STOPPING_COMPLETED: "stopping",
    Status.STOPPING_CANCELED: "stopping",
    Status.STOPPING_KILLED: "stopping",
    Status.STOPPING_ERROR: "stopping",
    Status.COMPLETED: "finished",
    Status.CANCELED: "canceled",
    Status.ERROR: "failed",
    Status.DELETING: "deleting",
    Status.DELETE_FAILED: "deletion failed",
    Status.DELETED: "deleted",
}


END_CONDITIONS: Final[dict[Status, tuple[TrialCondition, ...]]] = {
    Status.COMPLETED: ("finished", "stopped by the search"),
    Status.CANCELED: ("canceled",),
    Status.ERROR: ("failed",),
}
"""The conditions of ended trials, by final status."""


class SearchLengths(NamedTuple):
    """The properties of a search that decide the conditions of trials."""

    has_rungs: bool = False
    """Whether the searcher compares trials at rungs or in rounds."""
    longest: int | None = None
    """The longest training of a trial, in the configured unit. None: no trial of the search ends
    before its full length.
    """


def search_lengths(definition: Definition) -> SearchLengths:
    """Return the search lengths of an experiment. Nothing is read."""
    plan = definition.plan.method
    if spec_of_plan(plan).read_brackets is None:
        return SearchLengths()
    return SearchLengths(True, plan.max_length)


def experiment_condition(status: Status, *, running: int, queued: int) -> ExperimentCondition:
    """Return the condition of an experiment.

    An active experiment is `running` if a trial holds slots, `queued` if trials only wait for
    slots, and `waiting` if no trial can run yet, for example because its search method is away.

    Args:
        status: the stored status.
        running: the number of running allocations. Only read for an active experiment.
        queued: the number of queued requests. Only read for an active experiment.
    """
    if status is not Status.ACTIVE:
        return _BY_STATUS[status]
    if running:
        return "running"
    return "queued" if queued else "waiting"


def trial_condition(state: TrialState, search: SearchLengths) -> TrialCondition:
    """Return the condition of a trial.

    Args:
        state: the trial's state, as stored.
        search: the search lengths of the trial's experiment.
    """
    if state.status.is_final:
        return _end_condition(state, search)
    if state.killed or state.experiment_status.is_stopping or state.stopped:
        return "stopping"
    allocation = state.allocation
    is_placed = allocation is not None and bool(allocation.places)
    if state.experiment_status is Status.PAUSED:
        return "pausing" if is_placed else "paused"
    if allocation is None:
        return _wait_condition(state, search)
    return _run_condition(allocation) if is_placed else "queued"


def statuses_of(condition: str) -> frozenset[Status]:
    """Return the stored statuses of experiments that may have the condition.

    Empty for a word that is no condition of an experiment.
    """
    if condition in ("running", "queued", "waiting"):
        return frozenset({Status.ACTIVE})
    return frozenset(status for status, word in _BY_STATUS.items() if word == condition)


def _end_condition(state: TrialState, search: SearchLengths) -> TrialCondition:
    """Return the condition of an ended trial.

    A completed trial was stopped by the search if the search sent a stop, or closed the trial after
    a rung below the longest training. The length of a copy in population-based training does not
    include its original's training, so a copy counts as finished.
    """
    if state.status is not Status.COMPLETED:
        return "failed" if state.status is Status.ERROR else "canceled"
    if state.stopped:
        return "stopped by the search"
    is_closed_by_search = state.closed and state.has_reached_length and not state.early_exit
    is_short = (
        search.longest is not None
        and state.length_units is not None
        and state.length_units < search.longest
        and state.inherited_checkpoint is None
    )
    return "stopped by the search" if is_closed_by_search and is_short else "finished"


def _wait_condition(state: TrialState, search: SearchLengths) -> TrialCondition:
    """Return the condition of an active trial without an allocation."""
    if state.awaits_restart_delay:
        return "waiting to restart"
    if state.awaits_checkpoint or state.length is None:
        return "waiting for the search"
    if state.has_reached_length and not state.must_end_again:
        return "waiting at a rung" if search.has_rungs else "waiting for the search"
    # The request for slots is on its way to the pool.
    return "queued"


def _run_condition(allocation: Allocation) -> TrialCondition:
    """Return the condition of an active trial with an allocation that has slots."""
    if allocation.desired_state is not DesiredState.RUN:
        return "preempted"
    return "running" if allocation.state is AllocationState.RUNNING else "starting"
