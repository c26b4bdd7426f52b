"""The sentences for messages to a resource pool."""

from collections.abc import Mapping

from control_plane.actors.messages import pool as to_pool
from control_plane.actors.records import Availability
from control_plane.queries.sentences.context import Sentence, SentenceContext
from control_plane.queries.sentences.phrases import count_text, last_line
from control_plane.scheduling.quiet_hours import moment_text


def _availability_text(availability: Availability) -> str:
    """Return which work an agent accepts: `enabled`, `disabled`, `draining`, or `enabled without
    slots 0, 1`.
    """
    if not availability.enabled:
        return "draining" if availability.draining else "disabled"
    closed = ", ".join(map(str, availability.disabled))
    return f"enabled without slots {closed}" if closed else "enabled"


def _request_sentence(message: to_pool.SlotsRequested, context: SentenceContext) -> str:
    """Return the number of slots that an allocation requests."""
    name = f"allocation {message.trial_id}.{message.epoch}"
    return f"{name} asks for {count_text(message.slots, 'slot')}"


def _quiet_sentence(message: to_pool.QuietHoursChecked, context: SentenceContext) -> str:
    """Return the begin and the end of the first period that the check has found."""
    if not message.periods:
        return "the pool has no quiet hours"
    first = message.periods[0]
    return f"quiet hours from {moment_text(first.from_ms)} until {moment_text(first.until_ms)}"


OF_POOLS: Mapping[type, Sentence] = {
    to_pool.PoolConfigured: lambda m, context: f"pool {m.name} configured{context.user}",
    to_pool.SlotsRequested: _request_sentence,
    to_pool.PoolRemoved: lambda _, context: f"{context.name} removed{context.user}",
    to_pool.JobChanged: lambda m, context: f"the job of experiment {m.group} changed",
    to_pool.SlotsReleased: lambda m, context: (
        f"allocation {m.trial_id}.{m.epoch} releases its slots"
    ),
    to_pool.AgentJoined: lambda m, context: (
        f"agent {m.agent} joined with {count_text(len(m.slots), 'slot')}"
    ),
    to_pool.AgentAvailabilityChanged: lambda m, context: (
        f"agent {m.agent} is {_availability_text(m.availability)}"
    ),
    to_pool.AgentLost: lambda m, context: f"agent {m.agent} was lost: {last_line(m.reason)}",
    to_pool.StaleAllocationsFound: lambda m, context: (
        f"the audit found {count_text(len(m.stale), 'stale allocation')}"
    ),
    to_pool.BudgetChecked: lambda m, context: (
        "the budget is used up" if m.over_budget else "the budget is not used up"
    ),
    to_pool.QuietHoursChecked: _quiet_sentence,
    to_pool.SupplyChecked: lambda m, context: (
        f"no instance can be launched now: {last_line(m.no_supply_reason)}"
        if m.no_supply_reason
        else "instances can be launched again"
    ),
    to_pool.PatienceEnded: lambda m, context: (
        f"the job of experiment {m.group} has waited as long as its pool_patience allows"
    ),
    to_pool.ExclusionRequested: lambda m, context: (
        f"evidence against the machine of agent {m.agent}: {last_line(m.reason)}"
    ),
    to_pool.GangChecked: lambda m, context: (
        f"{count_text(len(m.agents), 'machine')} passed the check of a gang with"
        f" {m.bandwidth:.0f} MB/s"
    ),
    to_pool.SchedulingContinued: lambda _, context: "the scheduling continues",
}
