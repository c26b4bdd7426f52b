"""Requests for suggested points of an experiment's search, for the suggester.

While the search waits for suggestions, a row in `suggestions` has the number of the first. The row
is written in the commit that makes it necessary. The answer or the end of the search removes it.
"""

import json

from control_plane.actors.experiment.state import ExperimentState, listing_sort_key
from control_plane.actors.step import StepContext
from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.searchers.methods.bayesian import BayesianState


def update_suggestion_row(
    before: ExperimentState, after: ExperimentState, context: StepContext
) -> ExperimentState:
    """Write, change or remove the row in `suggestions`, if the awaited suggestion differs between
    two states.

    Return `after`. The row has the number of the first awaited suggestion.
    """
    was, now = awaited_suggestion(before), awaited_suggestion(after)
    if was != now:
        body = None if now is None else json.dumps({"first": now}).encode()
        context.write_row(SUGGESTION.partition, listing_sort_key(after.experiment_id), body)
    return after


def awaited_suggestion(state: ExperimentState) -> int | None:
    """Return the number of the first suggestion that a Bayesian search waits for.

    Return None if the search waits for no suggestion, and for other searches. Also return None if
    the experiment is stopping or has ended.
    """
    method = state.search.method
    if not isinstance(method, BayesianState) or not method.awaits_external_input:
        return None
    return None if state.status.is_stopping or state.status.is_final else method.answered
