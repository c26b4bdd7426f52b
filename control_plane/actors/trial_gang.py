"""A gang: an allocation of several nodes, which begin together and end together.

It is as far as the node that is behind, and over when every node is gone; once one of them has
failed or was lost, the rest is stopped. One of its exits decides how it ended: a loss before a
failure, since the others fail of a node that vanished, and news of that comes late; the first
failure before any kill that followed from it; and where all ended well, that of the chief, the node
of rank 0.
"""

from dataclasses import replace

from control_plane.actors.trial_messages import AllocationExited, AllocationLost
from control_plane.actors.trial_state import Allocation, AllocationState, Member, Verdict, Wish
from control_plane.evolve import evolve

AGENT_LOST = "agent_lost"
"""The reason of an exit that nobody could report: that of a node whose agent was lost."""

_PROGRESS = tuple(AllocationState)
_WELL = ("completed", "idle", "preempted", "stop_requested")
# How much an exit has to say about the gang; of two that have as much the first one counts.
_OTHER, _CHIEF, _FAILED, _LOST = range(4)
# Of these no machine is the cause, even if it was about to end.
_OWN = ("completed", "idle", "stop_requested", "start_failed")
_CAUSE_CHARACTERS_MAX = 200


def furthest(one: AllocationState, other: AllocationState) -> AllocationState:
    """The later of two states."""
    return max(one, other, key=_PROGRESS.index)


def is_loss(message: AllocationExited, wish: Wish) -> bool:
    """Whether a node went without its own doing, though it was to run: with its machine or its
    agent.
    """
    if message.reason == AGENT_LOST:
        return True
    if wish is not Wish.RUN:
        return False
    noticed = bool(message.notice) and message.reason not in _OWN
    return noticed or message.reason in ("lost", "killed")


def reached(allocation: Allocation, rank: int, nodes: int, state: AllocationState) -> Allocation:
    """A node's container is in that state."""
    members = _members(allocation, nodes)
    member = members[rank]
    members[rank] = replace(member, state=furthest(member.state, state))
    behind = min(
        (member.state for member in members if not member.gone),
        key=_PROGRESS.index,
        default=allocation.state,
    )
    after = furthest(allocation.state, behind)
    return evolve(allocation, members=tuple(members), state=after)


def exited(allocation: Allocation, message: AllocationExited) -> Allocation:
    """A node has exited; a repeat changes nothing."""
    members = _members(allocation, message.nodes)
    if members[message.node_rank].gone:
        return allocation
    members[message.node_rank] = replace(members[message.node_rank], gone=True)
    known, wish = allocation.verdict, asked(allocation)
    # That a node was killed means nothing where the gang was broken before and is stopped for it.
    seen = allocation.wish if message.reason == "killed" and not message.notice else wish
    heavier = known is None or _weight(message, seen) > _weight(known.exit, known.wish)
    verdict = Verdict(message, wish) if heavier else known
    return evolve(allocation, members=tuple(members), verdict=verdict)


def lost(allocation: Allocation, message: AllocationLost) -> Allocation:
    """A node's agent was lost, and the node with it unless it had exited. A node of an agent that
    it is not known to have stands for all of them.
    """
    nodes = max(len(allocation.places), len(allocation.members))
    known = message.agent in allocation.agents
    for rank in (allocation.agents.index(message.agent),) if known else range(nodes):
        gone = AllocationExited(
            message.epoch, AGENT_LOST, message=message.reason, node_rank=rank, nodes=nodes
        )
        allocation = exited(allocation, gone)
    return allocation


def is_over(allocation: Allocation) -> bool:
    """Whether every node is gone."""
    return all(member.gone for member in allocation.members)


def is_broken(allocation: Allocation) -> bool:
    """Whether the rest cannot go on."""
    verdict = allocation.verdict
    return verdict is not None and _weight(verdict.exit, verdict.wish) >= _FAILED


def asked(allocation: Allocation) -> Wish:
    """What is wanted of the gang, but for what followed from its being broken."""
    if allocation.verdict is not None and is_broken(allocation):
        return allocation.verdict.wish
    return allocation.wish


def cause(message: AllocationExited) -> str:
    """Why a node is gone, in a line."""
    told = message.notice or message.message or f"its processes ended: {message.reason}"
    return (told.splitlines() or [""])[0][:_CAUSE_CHARACTERS_MAX]


def _members(allocation: Allocation, nodes: int) -> list[Member]:
    """All of them, those nobody has heard of yet too."""
    known = allocation.members
    return [*known, *[Member()] * (max(nodes, len(allocation.places)) - len(known))]


def _weight(message: AllocationExited, wish: Wish) -> int:
    if is_loss(message, wish):
        return _LOST
    if message.reason not in _WELL:
        return _FAILED
    return _OTHER if message.node_rank else _CHIEF
