"""Gangs: allocations of several nodes, which begin together and end together.

A gang's state is that of the node furthest behind, and it is over when every node is gone; once a
node has failed or was lost, the rest is stopped. One of the exits is the verdict on how the gang
ended: refused hyperparameters before all else, since the other nodes fail for want of the one that
refused them; then a loss before a failure, for the same reason, and because news of a loss comes
late; the first failure before any kill that followed from it; and where all nodes ended well, the
exit of the chief, the node of rank 0.
"""

from dataclasses import replace

from control_plane.actors.messages.trial import CUT, AllocationExited, AllocationLost
from control_plane.actors.trial.state import (
    Allocation,
    AllocationState,
    DesiredState,
    Member,
    Verdict,
)
from control_plane.evolve import evolve

AGENT_LOST = "agent_lost"
"""The reason of the exit of a node whose agent was lost, which no agent reports."""

_PROGRESS = tuple(AllocationState)
_WELL = ("completed", "idle", "preempted", "stop_requested")
# Weights of exits: the heaviest one is the verdict on the gang, the first of equal ones.
_OTHER, _CHIEF, _FAILED, _LOST, _REFUSED = range(5)
# Reasons that are the trial's own, even if its machine was about to end.
_OWN = ("completed", "idle", "stop_requested", "start_failed")
_CAUSE_CHARACTERS_MAX = 200


def later_state(one: AllocationState, other: AllocationState) -> AllocationState:
    """The later of two allocation states."""
    return max(one, other, key=_PROGRESS.index)


def is_loss(message: AllocationExited, desired: DesiredState) -> bool:
    """Whether a node that was to run was lost with its machine or its agent."""
    if message.reason == AGENT_LOST:
        return True
    if desired is not DesiredState.RUN:
        return False
    noticed = bool(message.notice) and message.reason not in _OWN
    return noticed or message.reason in ("lost", "killed")


def advance_node(
    allocation: Allocation, rank: int, nodes: int, state: AllocationState
) -> Allocation:
    """Advance a node's container to a state, and the gang to that of the node furthest behind."""
    members = _members(allocation, nodes)
    member = members[rank]
    members[rank] = replace(member, state=later_state(member.state, state))
    behind = min(
        (member.state for member in members if not member.gone),
        key=_PROGRESS.index,
        default=allocation.state,
    )
    after = later_state(allocation.state, behind)
    return evolve(allocation, members=tuple(members), state=after)


def record_node_exit(allocation: Allocation, message: AllocationExited) -> Allocation:
    """Record a node's exit, and the verdict on the gang; a repeat changes nothing."""
    members = _members(allocation, message.nodes)
    if members[message.node_rank].gone:
        return allocation
    members[message.node_rank] = replace(members[message.node_rank], gone=True)
    known, desired = allocation.verdict, desired_state(allocation)
    # A kill says nothing where the gang was broken before: its nodes are killed for that.
    at_exit = allocation.wish if message.reason == "killed" and not message.notice else desired
    weight = _exit_weight(message, at_exit)
    is_heavier = known is None or weight > _exit_weight(known.exit, known.wish)
    verdict = Verdict(message, desired) if is_heavier else known
    # The chief tells, whichever node's machine ends; a node that was cut short knows least.
    outcome = allocation.notice_outcome
    if message.notice_outcome and outcome in ("", CUT):
        outcome = message.notice_outcome
    return evolve(allocation, members=tuple(members), verdict=verdict, notice_outcome=outcome)


def record_lost_agent(allocation: Allocation, message: AllocationLost) -> Allocation:
    """Record the loss of an agent, and of its node unless that had exited; all nodes are lost
    where the agent is not one of the allocation's.
    """
    nodes = max(len(allocation.places), len(allocation.members))
    known = message.agent in allocation.agents
    for rank in (allocation.agents.index(message.agent),) if known else range(nodes):
        gone = AllocationExited(
            message.epoch, AGENT_LOST, message=message.reason, node_rank=rank, nodes=nodes
        )
        allocation = record_node_exit(allocation, gone)
    return allocation


def is_over(allocation: Allocation) -> bool:
    """Whether every node is gone."""
    return all(member.gone for member in allocation.members)


def is_broken(allocation: Allocation) -> bool:
    """Whether a node was lost or has failed, so that the rest cannot go on."""
    verdict = allocation.verdict
    return verdict is not None and _exit_weight(verdict.exit, verdict.wish) >= _FAILED


def desired_state(allocation: Allocation) -> DesiredState:
    """The desired state of the gang before it was broken, or now where it is not broken."""
    if allocation.verdict is not None and is_broken(allocation):
        return allocation.verdict.wish
    return allocation.wish


def exit_cause(message: AllocationExited) -> str:
    """Why a node is gone, in one line."""
    text = message.notice or message.message or f"its processes ended: {message.reason}"
    return (text.splitlines() or [""])[0][:_CAUSE_CHARACTERS_MAX]


def _members(allocation: Allocation, nodes: int) -> list[Member]:
    """The nodes of a gang by rank, with those that have reported nothing yet."""
    known = allocation.members
    return [*known, *[Member()] * (max(nodes, len(allocation.places)) - len(known))]


def _exit_weight(message: AllocationExited, desired: DesiredState) -> int:
    if message.reason == "invalid_hp":
        return _REFUSED
    if is_loss(message, desired):
        return _LOST
    if message.reason not in _WELL:
        return _FAILED
    return _OTHER if message.node_rank else _CHIEF
