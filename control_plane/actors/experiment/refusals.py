"""The message of a search whose trials all refuse their hyperparameters.

Such a search tries others without end, as it did in Determined: one set may be accepted yet.
"""

from control_plane.actors.experiment.state import ExperimentState
from control_plane.evolve import evolve

# So many in a row, from the beginning, are told.
REFUSALS_TOLD = 20
_ALL_REFUSED = "trials that have ended, all of them, refused their hyperparameters (InvalidHP)"


def tell_of_refusals(state: ExperimentState) -> ExperimentState:
    """Keep in the experiment's message how many trials have ended so and no other way; take it back
    with the first that has ended otherwise.
    """
    tally = state.search.tally
    if state.status.is_stopping or state.status.is_final:
        return state
    if tally.closed >= REFUSALS_TOLD and tally.invalid == tally.closed:
        text = (
            f"{tally.closed} {_ALL_REFUSED}, and others take their place: if no hyperparameters of "
            "the space make sense to the code, kill the experiment"
        )
        return evolve(state, message=text)
    return evolve(state, message="") if _ALL_REFUSED in state.message else state
