"""Gangs: allocations on several nodes, which begin together and end together.

The state of a gang is the state of its slowest node. A gang is over when every node has exited or
was lost. Once a node has failed or was lost, the other nodes are stopped. The verdict is the exit
that decides how the gang ends:
- Refused hyperparameters come first, since the other nodes fail for lack of the refusing node.
- A loss comes before a failure, for the same reason, and because losses are reported late.
- A failure comes before a good exit. Among equal exits, the first one decides. An idle run that
  its agent has ended counts like a failure, so that the other nodes are stopped.
- If all nodes ended well, the exit of the chief decides. The chief is the node of rank 0.
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
"""The exit reason of a node whose agent was lost. No agent reports this reason."""

_PROGRESS = tuple(AllocationState)
_GOOD_REASONS = ("completed", "idle", "preempted", "stop_requested")
# Weights of exits. The heaviest exit is the verdict on the gang. Among equals, the first decides.
_OTHER, _CHIEF, _FAILED, _LOST, _REFUSED = range(5)
# Reasons of exits that are no losses, even after an interruption notice.
_REASONS_WITHOUT_LOSS = ("completed", "idle", "stop_requested", "start_failed")
_CAUSE_CHARACTERS_MAX = 200


def later_state(left: AllocationState, right: AllocationState) -> AllocationState:
    """Return the state that comes later in the order of AllocationState."""
    return max(left, right, key=_PROGRESS.index)


def is_loss(message: AllocationExited, desired: DesiredState) -> bool:
    """Return whether a node was lost with the machine or the agent.

    An exit for the reason AGENT_LOST is always a loss. Other exits are losses only if the desired
    state was RUN and the node was lost or killed, or exited after an interruption notice. After a
    notice, exits for _REASONS_WITHOUT_LOSS do not count.
    """
    if message.reason == AGENT_LOST:
        return True
    if desired is not DesiredState.RUN:
        return False
    noticed = bool(message.notice) and message.reason not in _REASONS_WITHOUT_LOSS
    return noticed or message.reason in ("lost", "killed")


def advance_node(
    allocation: Allocation, rank: int, nodes: int, state: AllocationState
) -> Allocation:
    """Advance a node's container to a state, and the gang to the state of the slowest node.

    States never move backwards. Nodes that have ended do not count. Return the updated allocation.
    """
    members = _members(allocation, nodes)
    member = members[rank]
    members[rank] = replace(member, state=later_state(member.state, state))
    slowest = min(
        (member.state for member in members if not member.has_ended),
        key=_PROGRESS.index,
        default=allocation.state,
    )
    after = later_state(allocation.state, slowest)
    return evolve(allocation, members=tuple(members), state=after)


def record_node_exit(allocation: Allocation, message: AllocationExited) -> Allocation:
    """Record a node's exit and notice outcome. The heaviest exit becomes the verdict.

    Return the updated allocation. A repeated exit returns `allocation` itself.
    """
    members = _members(allocation, message.nodes)
    if members[message.node_rank].has_ended:
        return allocation
    members[message.node_rank] = replace(members[message.node_rank], has_ended=True)
    before, desired = allocation.verdict, desired_state(allocation)
    # The nodes of a broken gang are killed, so a kill is then no loss.
    at_exit = (
        allocation.desired_state if message.reason == "killed" and not message.notice else desired
    )
    weight = _exit_weight(message, at_exit)
    is_heavier = before is None or weight > _exit_weight(before.exit, before.desired_state)
    verdict = Verdict(message, desired) if is_heavier else before
    # The chief reports the outcome for all nodes. Any outcome replaces CUT, which agents add.
    outcome = allocation.notice_outcome
    if message.notice_outcome and outcome in ("", CUT):
        outcome = message.notice_outcome
    return evolve(allocation, members=tuple(members), verdict=verdict, notice_outcome=outcome)


def record_lost_agent(allocation: Allocation, message: AllocationLost) -> Allocation:
    """Record the loss of an agent as the exit of the agent's node, for the reason AGENT_LOST.

    Return the updated allocation. A node that has exited already changes nothing. If the allocation
    is not on the agent, all nodes are lost.
    """
    nodes = max(len(allocation.places), len(allocation.members))
    is_member = message.agent in allocation.agents
    for rank in (allocation.agents.index(message.agent),) if is_member else range(nodes):
        node_exit = AllocationExited(
            message.epoch, AGENT_LOST, message=message.reason, node_rank=rank, nodes=nodes
        )
        allocation = record_node_exit(allocation, node_exit)
    return allocation


def is_over(allocation: Allocation) -> bool:
    """Return whether every node has exited or was lost. The allocation must have nodes."""
    return all(member.has_ended for member in allocation.members)


def is_broken(allocation: Allocation) -> bool:
    """Return whether the gang's verdict is a loss, a failure or refused hyperparameters.

    A failure is an exit at a limit, or an exit whose reason is not in _GOOD_REASONS. Return False
    before any node exited.
    """
    verdict = allocation.verdict
    return verdict is not None and _exit_weight(verdict.exit, verdict.desired_state) >= _FAILED


def desired_state(allocation: Allocation) -> DesiredState:
    """Return the gang's desired state at the time of the verdict, if the gang is broken.

    The other nodes of a broken gang are killed, so the present desired state says nothing about the
    exit. For any other gang, return the present desired state.
    """
    if allocation.verdict is not None and is_broken(allocation):
        return allocation.verdict.desired_state
    return allocation.desired_state


def exit_cause(message: AllocationExited) -> str:
    """Return the reason for a node's exit, in a line of at most 200 characters."""
    text = message.notice or message.message or f"its processes ended: {message.reason}"
    return (text.splitlines() or [""])[0][:_CAUSE_CHARACTERS_MAX]


def _members(allocation: Allocation, nodes: int) -> list[Member]:
    """Return the nodes of a gang by rank. Nodes without a report have the state PENDING."""
    reported = allocation.members
    return [*reported, *[Member()] * (max(nodes, len(allocation.places)) - len(reported))]


def _exit_weight(message: AllocationExited, desired: DesiredState) -> int:
    """Return the weight of an exit, given the desired state at that time. The heaviest exit
    decides.
    """
    if message.reason == "invalid_hp":
        return _REFUSED
    if is_loss(message, desired):
        return _LOST
    if message.reason not in _GOOD_REASONS or message.limit:
        return _FAILED
    return _OTHER if message.node_rank else _CHIEF
