"""The use of a run's slots: sums of each node, and the policy for runs that compute too little.

The agent of each node measures the use of the node's own slots. A node without load may wait for
the other nodes of its gang, so that only a low use of all nodes counts.
"""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.messages.trial_use import LowUseReported, UseReported
from control_plane.actors.step import StepContext
from control_plane.actors.trial.allocation import preempt
from control_plane.actors.trial.state import Allocation, DesiredState, LowUse, TrialState
from control_plane.actors.use import NO_USE
from control_plane.evolve import evolve


def apply_use_message(
    state: TrialState,
    allocation: Allocation,
    message: UseReported | LowUseReported,
    context: StepContext,
) -> TrialState:
    """Record the use of a node, or the begin or end of low use. Return the state.

    An allocation that was asked to stop ignores reports of low use.
    """
    if isinstance(message, UseReported):
        return evolve(state, allocation=_record_use(allocation, message))
    if allocation.desired_state is not DesiredState.RUN:
        return state
    return _record_low_use(state, allocation, message, context)


def low_use_text(percent: float, time_ms: int) -> str:
    """Return a sentence for users about low use."""
    minutes = time_ms / 60_000
    time = f"{minutes:.0f} min" if minutes >= 2 else f"{time_ms / 1000:.0f} s"
    return f"its slots computed {percent:.1f} % of the last {time}"


def _record_use(allocation: Allocation, message: UseReported) -> Allocation:
    """Return the allocation with the sums of a node.

    Sums count from the start of the run, so that a repeated report changes nothing. A report with
    less measured time than the known sums is older, and is ignored.
    """
    rank = message.node_rank
    uses = [*allocation.uses, *[NO_USE] * (rank + 1 - len(allocation.uses))]
    if message.use.measured_ms <= uses[rank].measured_ms:
        return allocation
    uses[rank] = message.use
    return evolve(allocation, uses=tuple(uses))


def _record_low_use(
    state: TrialState, allocation: Allocation, message: LowUseReported, context: StepContext
) -> TrialState:
    """Record whether a node's use is low. Notify the experiment when all nodes become low.

    If the settings say so, the run is asked to save a checkpoint and to end.
    """
    known = allocation.low_use or LowUse((), 0.0)
    others, own = {*known.nodes} - {message.node_rank}, {message.node_rank}
    ranks = others | own if message.is_low else others
    if ranks == {*known.nodes}:
        return state
    was_low, is_low = known.since_ms is not None, len(ranks) >= max(1, len(allocation.places))
    low_use = LowUse(
        tuple(sorted(ranks)), message.percent, context.now_ms - message.time_ms if is_low else None
    )
    state = evolve(state, allocation=evolve(allocation, low_use=low_use))
    if not is_low:
        if was_low:
            context.add_reason("its slots compute enough again")
        return state
    text, ends = low_use_text(message.percent, message.time_ms), state.settings.low_use == "end"
    context.add_reason(text)
    context.send(
        addresses.experiment(state.experiment_id), TrialUsedLittle(state.number, text, ends)
    )
    if not ends:
        return state
    reason = f"{text} (low_use)"
    ended = evolve(allocation, low_use=replace(low_use, end_reason=reason))
    return preempt(state, ended, reason, context)
