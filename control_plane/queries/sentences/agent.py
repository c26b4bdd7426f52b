"""The sentences for messages to an agent."""

from collections.abc import Mapping

from control_plane.actors.messages import agent as to_agent
from control_plane.queries.sentences.context import Sentence, SentenceContext
from control_plane.queries.sentences.phrases import count_text, last_line, slots_text


def _disable_sentence(message: to_agent.AgentDisableRequested, context: SentenceContext) -> str:
    """Return who disabled the agent or a single slot, and whether running work may finish."""
    slot = "" if message.slot is None else f" slot {message.slot} of"
    drained = "; what runs there may finish" if message.drain else ""
    return f"disabled{slot} {context.name}{context.user}{drained}"


def _enable_sentence(message: to_agent.AgentEnableRequested, context: SentenceContext) -> str:
    """Return who enabled the agent or a single slot."""
    slot = "" if message.slot is None else f" slot {message.slot} of"
    return f"enabled{slot} {context.name}{context.user}"


def _faults_sentence(message: to_agent.FaultsReported, context: SentenceContext) -> str:
    """Return the faults and the use by people that the agent reported for the machine."""
    if message.occupancy is not None and not message.faults:
        return f"{context.name} reports that people use its machine: {message.occupancy[0]}"
    if not message.faults:
        return f"{context.name} reports no faults of its machine"
    listed = [
        reason if slot is None else f"slot {slot}: {reason}" for slot, reason in message.faults
    ]
    return f"{context.name} reports faults of its machine: {'; '.join(listed)}"


OF_AGENTS: Mapping[type, Sentence] = {
    to_agent.AgentEnrolled: lambda m, context: (
        f"agent {m.agent} enrolled in pool {m.pool} with {count_text(len(m.slots), 'slot')}"
    ),
    to_agent.AllocationPlaced: lambda m, context: (
        f"allocation {m.trial_id}.{m.epoch} placed on slots {slots_text(m.slots)}"
        + (f" as node {m.node_rank} of {m.nodes}" if m.nodes > 1 else "")
    ),
    to_agent.AllocationRemoved: lambda m, context: f"allocation {m.trial_id}.{m.epoch} removed",
    to_agent.AgentDeclaredLost: lambda _, context: f"{context.name} was given up",
    to_agent.AgentForgotten: lambda _, context: f"{context.name} is no longer monitored",
    to_agent.AgentUpgradeRequested: lambda m, context: (
        f"{context.name} starts code {m.code[:12]}{context.user}"
    ),
    to_agent.AgentEnableRequested: _enable_sentence,
    to_agent.AgentDisableRequested: _disable_sentence,
    to_agent.FaultsReported: _faults_sentence,
    to_agent.AgentExcluded: lambda m, context: (
        f"{context.name} takes no work of its pool for a while: {last_line(m.reason)}"
    ),
    to_agent.ExclusionEnded: lambda _, context: f"an exclusion of {context.name} has ended",
    to_agent.TunnelOpened: lambda m, context: (
        f"a tunnel to allocation {m.trial_id}.{m.epoch} was opened{context.user}"
    ),
    to_agent.TunnelClosed: lambda m, context: f"tunnel {m.tunnel} was closed{context.user}",
}
