"""Requests for suggested points of an experiment's search, which the suggester answers.

While suggestions are awaited, a row in `suggestions` names the first of them. The row is written in
the commit that makes it necessary, and removed with the answer or the end of the search.
"""

import json

from control_plane.actors.experiment.state import ExperimentState, listing_sort_key
from control_plane.actors.step import StepContext
from control_plane.actors.suggestion_rows import SUGGESTIONS
from control_plane.searchers.methods.bayesian import BayesianState


def update_suggestion_row(
    before: ExperimentState, after: ExperimentState, context: StepContext
) -> ExperimentState:
    """Write or remove the row as `after` needs it; returns `after`, the experiment's new state."""
    was, now = awaited_suggestion(before), awaited_suggestion(after)
    if was != now:
        body = None if now is None else json.dumps({"first": now}).encode()
        context.write_row(SUGGESTIONS, listing_sort_key(after.experiment_id), body)
    return after


def awaited_suggestion(state: ExperimentState) -> int | None:
    """The number of the first suggestion that the search awaits, None if it awaits none."""
    method = state.search.method
    if not isinstance(method, BayesianState) or not method.awaits_external_input:
        return None
    return None if state.status.is_stopping or state.status.is_final else method.answered
