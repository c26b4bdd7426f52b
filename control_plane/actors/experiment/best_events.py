"""The events of best validations.

At most one best validation of an experiment is announced in BEST_INTERVAL_MS. Later ones wait, and
only the newest of these is announced, at the end of the interval or of the experiment.
"""

from dataclasses import replace

from control_plane.actors.event_routes import EventCondition, EventType, read_routes
from control_plane.actors.experiment.events import experiment_title, raise_experiment_event
from control_plane.actors.experiment.state import BestAnnouncement, ExperimentState
from control_plane.actors.messages.experiment import TrialValidationReported
from control_plane.actors.messages.experiment_events import BestValidationDue
from control_plane.actors.step import StepContext
from control_plane.clock_skew import is_from_future
from control_plane.evolve import evolve

BEST_INTERVAL_MS = 30_000
"""The least time between two announced best validations of an experiment, in ms."""


def raise_best_event(
    state: ExperimentState, message: TrialValidationReported, context: StepContext
) -> ExperimentState:
    """Raise an event for a new best validation. Return the state after the event.

    Within BEST_INTERVAL_MS after an earlier event, the validation waits for a timer instead, and
    replaces a waiting one. Do nothing unless a webhook may announce metrics.

    Args:
        state: the state with the new best metric.
    """
    if not state.watches_metrics:
        return state
    best = state.best_announcement
    if _is_interval_over(best, context.now_ms):
        return _announce_best(state, message.units, context)
    if not best.waits:
        context.set_timer(best.announced_ms + BEST_INTERVAL_MS, BestValidationDue())
    return evolve(state, best_announcement=replace(best, waits=True, units=message.units))


def raise_due_best_event(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Raise the event of the waiting best validation if BEST_INTERVAL_MS is over since the last.

    Return the state after the event. The timer of an earlier interval changes nothing.
    """
    if not _is_interval_over(state.best_announcement, context.now_ms):
        return state
    return _raise_waiting_event(state, context)


def raise_final_best_event(
    before: ExperimentState | None, after: ExperimentState | None, context: StepContext
) -> ExperimentState | None:
    """Raise the event of the waiting best validation if a step ended the experiment.

    Return `after` after the event.
    """
    if after is None or not after.status.is_final:
        return after
    if before is not None and before.status is after.status:
        return after
    return _raise_waiting_event(after, context)


def _is_interval_over(best: BestAnnouncement, now_ms: int) -> bool:
    """Return whether the experiment may announce a best validation now.

    This is true without an earlier announcement, and BEST_INTERVAL_MS after the last announcement.
    A time that a host with a clock ahead wrote delays no announcement.
    """
    if not best.announced_ms or is_from_future(best.announced_ms, now_ms):
        return True
    return now_ms >= best.announced_ms + BEST_INTERVAL_MS


def _raise_waiting_event(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Raise the event of the waiting best validation. Return the state after the event.

    Do nothing if none waits, or if the experiment is being deleted. If the best validation was
    discarded since, the experiment's present best is announced, unless it was announced before.
    """
    best = state.best_announcement
    if not best.waits or state.status.is_deleting:
        return state
    if state.best_metric in (None, best.metric):
        return evolve(state, best_announcement=replace(best, waits=False))
    return _announce_best(state, best.units, context)


def _announce_best(
    state: ExperimentState, units: float | None, context: StepContext
) -> ExperimentState:
    """Raise an event for the best validation of the state. Return the state after the event.

    Args:
        units: the length of the validation. None: not known.
    """
    assert state.best_metric is not None
    data = {
        "trial_id": state.best_trial,
        "metrics": {**state.best_values, state.metric: state.best_metric},
    }
    after = raise_experiment_event(
        read_routes(context),
        state,
        EventType.BEST_VALIDATION,
        f"trial {state.best_trial} of {experiment_title(state)} has the best"
        f" {state.metric} {state.best_metric:g}",
        context,
        condition=EventCondition(),
        data={"validation": data if units is None else {**data, "units": units}},
    )
    if after.events_raised == state.events_raised:
        # No webhook announces the experiment's best validations.
        return evolve(after, best_announcement=BestAnnouncement())
    return evolve(after, best_announcement=BestAnnouncement(context.now_ms, state.best_metric))
