"""The message of a search whose trials all refuse their hyperparameters.

Some searches try others without end, as they did in Determined: one set may be accepted yet.
"""

from control_plane.actors.experiment.state import ExperimentState, definition_of
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve
from control_plane.searchers.search import NO_BLOBS, make_method

# So many in a row, from the beginning, are told.
REFUSALS_TOLD = 20
_ALL_REFUSED = "trials that have ended, all of them, refused their hyperparameters (InvalidHP)"


def tell_of_refusals(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Keep in the experiment's message how many trials have ended so and no other way; take it back
    with the first that has ended otherwise.
    """
    tally = state.search.tally
    if state.status.is_stopping or state.status.is_final:
        return state
    if tally.closed >= REFUSALS_TOLD and tally.invalid == tally.closed:
        method = make_method(definition_of(context).plan, NO_BLOBS)
        fate = (
            "and others take their place"
            if method.replaces_refused
            else "and the search replaces none"
        )
        text = (
            f"{tally.closed} {_ALL_REFUSED}, {fate}: if no hyperparameters of the space make sense "
            "to the code, kill the experiment"
        )
        return evolve(state, message=text)
    return evolve(state, message="") if _ALL_REFUSED in state.message else state
