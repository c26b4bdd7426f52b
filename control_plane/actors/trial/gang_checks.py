"""The check of a gang's machines: passed checks, and the move away from bad machines.

The processes of the trial check the machines before the training code starts. After a failed check,
the pool may exclude the bad machine, and the trial requests slots again. The move uses up no
restart. After MOVES_MAX moves in a row, the trial is no longer checked.

The nodes first meet at node 0. Nodes that cannot meet report the missing nodes (absences), and the
trial decides which machine is bad.
"""

from collections.abc import Sequence

from control_plane.actors import addresses
from control_plane.actors.messages.pool import ExclusionRequested, GangChecked
from control_plane.actors.messages.trial import RestartDue
from control_plane.actors.messages.trial_gang_checks import GangCheckReported, GangMeetingDelayed
from control_plane.actors.step import StepContext
from control_plane.actors.trial.allocation import kill
from control_plane.actors.trial.lifecycle import release_and_reconcile
from control_plane.actors.trial.state import Absence, Allocation, DesiredState, TrialState
from control_plane.evolve import evolve
from detcloud.shared.plurals import count_text

MOVES_MAX = 3
"""The most moves in a row, after which the trial starts without a check."""
MOVE_MS = 10_000
"""The delay before the trial requests slots again, so that the exclusions precede, in ms."""


def apply_gang_report(
    state: TrialState,
    allocation: Allocation,
    message: GangCheckReported | GangMeetingDelayed,
    context: StepContext,
) -> TrialState:
    """Record the check of a run's machines, or the nodes that a node has not met."""
    if isinstance(message, GangCheckReported):
        return _record_check(state, allocation, message, context)
    return _record_delay(state, allocation, message, context)


def _record_check(
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
    return _move_away(state, allocation, ranks, message.text, context)


def _record_delay(
    state: TrialState, allocation: Allocation, message: GangMeetingDelayed, context: StepContext
) -> TrialState:
    """Record the nodes that a node has not met, and move away from machines that cannot meet.

    A late report of another machine excludes the machine while the allocation ends.
    """
    is_checked = bool(allocation.check_text) and not allocation.has_failed_check
    if is_checked or not allocation.is_gang or message.node_rank >= len(allocation.places):
        return state
    if allocation.desired_state is not DesiredState.RUN and not allocation.has_failed_check:
        return state
    known = unreachable_ranks(allocation.absences, len(allocation.places))
    others = [x for x in allocation.absences if x.node_rank != message.node_rank]
    own = Absence(message.node_rank, message.missing, message.has_met)
    absences = tuple(sorted((*others, own), key=lambda absence: absence.node_rank))
    allocation = evolve(allocation, absences=absences)
    bad = unreachable_ranks(absences, len(allocation.places))
    new = tuple(rank for rank in bad if rank not in known)
    if not new:
        return evolve(state, allocation=allocation)
    meets = "node 0 meets no other node" if new == (0,) else "no connection to node 0"
    names = ", ".join(f"node {rank} ({allocation.places[rank].agent})" for rank in new)
    text = f"{names}: {meets} within {message.waited_ms // 1000} s"
    return _move_away(state, allocation, new, text, context)


def unreachable_ranks(absences: Sequence[Absence], nodes: int) -> tuple[int, ...]:
    """Return the ranks of the machines that cannot meet. Empty while nothing is known.

    A node cannot meet node 0 if each of the two misses the other. A node whose process has not
    started misses nobody. If node 0 has met no node, and all other nodes miss node 0, node 0 is
    bad. Of two nodes, the other node is bad, like the node of higher rank of any bad link.
    """
    by_rank = {absence.node_rank: absence for absence in absences}
    first = by_rank.get(0)
    if first is None:
        return ()
    missing_first = {rank for rank, absence in by_rank.items() if 0 in absence.missing}
    if nodes == 2 or first.has_met:
        return tuple(rank for rank in sorted(first.missing) if rank in missing_first)
    return (0,) if len(missing_first) == nodes - 1 else ()


def _move_away(
    state: TrialState,
    allocation: Allocation,
    ranks: Sequence[int],
    fault: str,
    context: StepContext,
) -> TrialState:
    """Ask the pool to exclude the machines of `ranks`, and kill the allocation."""
    agents = [allocation.places[rank].agent for rank in ranks]
    text = f"the check of the machines failed: {fault}"
    for agent in agents:
        reason = f"trial {state.trial_id}: {text}"
        requested = ExclusionRequested(agent, reason, by_check=True)
        context.send(addresses.pool(allocation.pool), requested)
    context.add_reason(f"moved away from agents {', '.join(agents)}: {text}")
    if allocation.has_failed_check:
        return evolve(state, allocation=allocation)
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
