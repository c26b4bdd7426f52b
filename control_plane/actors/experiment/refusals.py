"""The message of an experiment in which the code of every trial refused the hyperparameters.

Some searches replace refused trials without end, as in Determined, since other hyperparameters may
be accepted.
"""

from control_plane.actors.experiment.state import ExperimentState, definition_of
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve
from control_plane.searchers.search import NO_BLOBS, make_method

REFUSALS_REPORTED_MIN = 20
"""The number of ended trials from which the message is shown."""
_ALL_REFUSED = "trials that have ended, all of them, refused their hyperparameters (InvalidHP)"


def update_refusal_message(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Set the experiment's message if all ended trials, at least 20, refused the hyperparameters.

    Remove the message after a trial has ended in another way. Return the updated state. An
    experiment that is stopping or has ended stays unchanged.
    """
    tally = state.search.tally
    if state.status.is_stopping or state.status.is_final:
        return state
    if tally.closed >= REFUSALS_REPORTED_MIN and tally.invalid == tally.closed:
        method = make_method(definition_of(context).plan, NO_BLOBS)
        replacement = (
            "and others take their place"
            if method.replaces_refused
            else "and the search replaces none"
        )
        text = (
            f"{tally.closed} {_ALL_REFUSED}, {replacement}: if no hyperparameters of the space make"
            " sense to the code, kill the experiment"
        )
        return evolve(state, message=text)
    return evolve(state, message="") if _ALL_REFUSED in state.message else state
