"""What an experiment asks of whoever suggests points to its search.

While suggestions are awaited there is a row in `suggestions`, which names the first of them. It is
written with the change that makes it necessary and goes with the answer, or with the search.
"""

import json

from control_plane.actors.experiment_state import ExperimentState, listing_sort
from control_plane.actors.step import Turn
from control_plane.searchers.bayesian import BayesianState

SUGGESTIONS = "suggestions"


def asked(before: ExperimentState, after: ExperimentState, turn: Turn) -> ExperimentState:
    """Keeps the row; `after` is what became of the experiment."""
    was, now = awaited(before), awaited(after)
    if was != now:
        body = None if now is None else json.dumps({"first": now}).encode()
        turn.write_row(SUGGESTIONS, listing_sort(after.experiment_id), body)
    return after


def awaited(state: ExperimentState) -> int | None:
    """The number of the first suggestion that is awaited, None if none is."""
    method = state.search.method
    if not isinstance(method, BayesianState) or not method.awaits_advice:
        return None
    return None if state.status.stopping or state.status.final else method.answered
