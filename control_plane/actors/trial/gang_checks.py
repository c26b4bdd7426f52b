"""The check of a gang's machines: passed checks, and the move away from bad machines.

The processes of the trial check the machines before the training code starts. After a failed check,
the pool may exclude the bad machine, and the trial requests slots again. The move uses up no
restart. After MOVES_MAX moves in a row, the trial is no longer checked.
"""

from control_plane.actors import addresses
from control_plane.actors.messages.pool import ExclusionRequested, GangChecked
from control_plane.actors.messages.trial import RestartDue
from control_plane.actors.messages.trial_gang_checks import GangCheckReported
from control_plane.actors.step import StepContext
from control_plane.actors.trial.allocation import kill
from control_plane.actors.trial.lifecycle import release_and_reconcile
from control_plane.actors.trial.state import Allocation, DesiredState, TrialState
from control_plane.evolve import evolve
from detcloud.shared.plurals import count_text

MOVES_MAX = 3
"""The most moves in a row, after which the trial starts without a check."""
MOVE_MS = 10_000
"""The delay before the trial requests slots again, so that the exclusions precede, in ms."""


def record_check(
    state: TrialState, allocation: Allocation, message: GangCheckReported, context: StepContext
) -> TrialState:
    """Record the check of a run's machines. A run's first report counts.

    After a passed check, the pool gets a GangChecked. After a failed check, the pool gets an
    ExclusionRequested for each bad machine, and the allocation is killed. Of a bad link, the
    machine with the higher rank counts as bad.
    """
    if allocation.check_text or not allocation.is_gang:
        return state
    if allocation.desired_state is not DesiredState.RUN:
        return state
    if not message.bad_nodes and not message.bad_links:
        text = f"the machines passed the check with {message.bandwidth:.0f} MB/s"
        checked = GangChecked(allocation.agents, message.device, message.bandwidth)
        context.send(addresses.pool(allocation.pool), checked)
        allocation = evolve(allocation, check_text=text)
        return evolve(state, allocation=allocation, check_moves=0)
    ranks = bad_ranks(message, len(allocation.places))
    agents = [allocation.places[rank].agent for rank in ranks]
    text = f"the check of the machines failed: {message.text}"
    for agent in agents:
        reason = f"trial {state.trial_id}: {text}"
        requested = ExclusionRequested(agent, reason, by_check=True)
        context.send(addresses.pool(allocation.pool), requested)
    context.add_reason(f"moved away from agents {', '.join(agents)}: {text}")
    allocation = evolve(allocation, check_text=text, has_failed_check=True)
    return kill(state, allocation, text)


def bad_ranks(message: GangCheckReported, nodes: int) -> tuple[int, ...]:
    """Return the ranks of the machines to avoid: the bad nodes, and a node of each bad link.

    Ranks of missing nodes are left out.
    """
    ranks = {*message.bad_nodes}
    for first, second in message.bad_links:
        if first not in ranks and second not in ranks:
            ranks.add(max(first, second))
    return tuple(sorted(rank for rank in ranks if rank < nodes))


def reconcile_after_failed_check(
    state: TrialState, allocation: Allocation, context: StepContext
) -> TrialState:
    """Release the slots after a failed check, and request slots again after MOVE_MS."""
    moves = state.check_moves + 1
    context.set_timer(context.now_ms + MOVE_MS, RestartDue(state.epoch))
    context.add_reason(f"{count_text(moves, 'move')} in a row after failed checks of the machines")
    state = evolve(
        state, check_moves=moves, message=allocation.check_text, awaits_restart_delay=True
    )
    return release_and_reconcile(state, allocation, context)
