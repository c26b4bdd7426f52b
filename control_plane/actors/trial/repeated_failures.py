"""Failures that repeat on other machines, so that a restart would fail, too.

The agent sends a fingerprint of the place in the code and the error. Two failures are alike if the
fingerprints are equal and the trial has made no progress in between: the trained batches and the
checkpoint are the same. Alike failures on one machine may be the machine's fault. Alike failures on
two machines are the code's.
"""

from control_plane.actors.messages.trial import AllocationExited
from control_plane.actors.trial.state import Allocation, Failure, TrialState
from control_plane.evolve import evolve
from detcloud.shared.plurals import count_text

FAILURES_KEPT = 5


def record_failure(
    state: TrialState, allocation: Allocation, message: AllocationExited
) -> tuple[TrialState, str]:
    """Record a failure of the training code, and search for an alike failure on another agent.

    Failures before the latest progress are dropped. Only the last FAILURES_KEPT failures are kept.
    A failure without a fingerprint or a known agent is not recorded.

    Returns:
        The state, and the reason why a restart would fail, too. The reason is "" if no earlier
        failure on another agent is alike.
    """
    places = allocation.places[message.node_rank :][:1]
    if not message.fingerprint or not places:
        return state, ""
    uuid = state.checkpoint.uuid if state.checkpoint else ""
    failure = Failure(message.fingerprint, state.steps, uuid, places[0].agent)
    earlier = [
        past
        for past in state.recent_failures
        if (past.steps, past.checkpoint) == (failure.steps, failure.checkpoint)
    ]
    kept = (*earlier, failure)[-FAILURES_KEPT:]
    state = evolve(state, recent_failures=kept)
    for past in earlier:
        if past.fingerprint == failure.fingerprint and past.agent != failure.agent:
            reason = (
                f"it failed alike on agents {past.agent} and {failure.agent} after"
                f" {count_text(failure.steps, 'batch', 'batches')}"
            )
            return state, reason
    return state, ""
