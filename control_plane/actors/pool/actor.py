"""The step of the pool actor, which owns settings, jobs with requests, agents and allocations.

Jobs, requests and agents are ordered maps in parts. A decision therefore writes as much for a queue
of ten thousand requests as for a queue of ten. Messages only record changes. The scheduler runs
once at the end of a fold.
"""

from dataclasses import replace
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.job_row import POOLS
from control_plane.actors.messages.pool import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    BudgetChecked,
    ExclusionRequested,
    GangChecked,
    JobChanged,
    PatienceEnded,
    PoolConfigured,
    PoolMessage,
    PoolRemoved,
    PoolSettings,
    QuietHoursChecked,
    SchedulingContinued,
    SlotsReleased,
    SlotsRequested,
    StaleAllocationsFound,
    SupplyChecked,
)
from control_plane.actors.messages.stored_names import message_name
from control_plane.actors.messages.trial import AllocationExited
from control_plane.actors.pool.agent_kinds import AGENT_KINDS, AgentKinds
from control_plane.actors.pool.events import raise_budget_event
from control_plane.actors.pool.machine_checks import GANG_CHECKS, GangChecks, apply_evidence
from control_plane.actors.pool.membership import apply_agent_message
from control_plane.actors.pool.patience import end_patience, release_waiting_jobs
from control_plane.actors.pool.quiet_hours import apply_quiet_hours
from control_plane.actors.pool.scheduling import expire_protections, run_scheduler
from control_plane.actors.pool.state import (
    PoolState,
    agents_of,
    job_queue_of,
    parse_allocation,
    release_part,
    settings_of,
)
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.scheduling.model import AllocationRequest
from detcloud.shared.plurals import count_text

__all__ = [
    "PoolState",
    "agents_of",
    "fallback",
    "finish_fold",
    "job_queue_of",
    "parse_allocation",
    "settings_of",
    "step",
]


def step(state: PoolState | None, message: PoolMessage, context: StepContext) -> PoolState | None:
    """Apply a message to the state of a pool, and return the next state.

    A pool that does not exist, or was removed, only accepts a PoolConfigured, which creates the
    pool. Any other message to a missing pool returns None.

    Raises:
        CommandRefused: conflict; the pool is to be removed and has jobs or agents.
    """
    if isinstance(message, PoolConfigured):
        return _configure_pool(state, message, context)
    if state is None or state.removed:
        return _answer_without_pool(state, message, context)
    match message:
        case PoolRemoved():
            return _remove_pool(state, context)
        case SlotsRequested():
            return _enqueue_request(state, message, context)
        case SlotsReleased():
            return _release_slots(state, message, context)
        case JobChanged(group):
            is_new = job_queue_of(context).reload_group(group)
            return evolve(state, needs_scheduling=True, settings_changed=True) if is_new else state
        case AgentJoined() | AgentAvailabilityChanged() | AgentLost():
            return apply_agent_message(state, message, context)
        case SchedulingContinued() | PatienceEnded():
            return _apply_timer(state, message, context)
        case (
            StaleAllocationsFound()
            | BudgetChecked()
            | QuietHoursChecked()
            | SupplyChecked()
            | ExclusionRequested()
            | GangChecked()
        ):
            return _apply_check(state, message, context)
        case _:
            assert_never(message)


def finish_fold(state: PoolState, context: StepContext) -> PoolState:
    """Run the scheduler once after the last message of a fold, and release jobs to other pools.

    Nothing happens unless a message set `needs_scheduling`. The scheduler runs if requests are
    queued, or if settings changed and allocations run. `wait_reason` is renewed.
    """
    if not state.needs_scheduling:
        return state
    concerned = state.queued or (state.settings_changed and state.running)
    is_changed = state.settings_changed
    state = evolve(state, needs_scheduling=False, settings_changed=False, wait_reason="")
    if concerned:
        state = run_scheduler(state, context, is_changed=is_changed)
    return release_waiting_jobs(state, context) if state.queued else state


def fallback(state: PoolState | None, message: object, context: StepContext) -> PoolState | None:
    """Drop a message that the pool cannot process, and return the state unchanged.

    For a SlotsRequested, the trial gets an AllocationExited, so that the trial retries as often as
    after a failed start. The pool's audit repairs the consequences of other messages.
    """
    text = f"{message_name(message)} could not be processed"
    context.add_reason(text)
    if isinstance(message, SlotsRequested):
        _deny_slots(message, text, context)
    return state


def _configure_pool(
    state: PoolState | None, message: PoolConfigured, context: StepContext
) -> PoolState:
    """Create the pool with a row in `pools`, or replace the part `settings`. The reply is the
    pool's name.

    New settings concern running allocations too, so the fold ends with a pass of the scheduler.
    Equal or missing settings of an existing pool change nothing.
    """
    context.reply = message.name
    if state is None or state.removed:
        context.write_row(POOLS, message.name, b"")
        context.write_part("settings", message.settings or PoolSettings())
        return PoolState(message.name)
    if message.settings is None or message.settings == settings_of(context):
        return state
    context.write_part("settings", message.settings)
    return evolve(state, needs_scheduling=True, settings_changed=True)


def _apply_check(
    state: PoolState,
    message: StaleAllocationsFound
    | BudgetChecked
    | QuietHoursChecked
    | SupplyChecked
    | ExclusionRequested
    | GangChecked,
    context: StepContext,
) -> PoolState:
    """Apply the result of an audit, or of a check of the budget, the quiet hours, the supply or
    machines.

    Stale allocations are released. A changed use of the budget is written into the part `settings`,
    and webhooks announce the change. `apply_quiet_hours` applies a check of quiet hours.
    A supply is always recorded, and the fold ends with a pass of the scheduler.
    """
    if isinstance(message, StaleAllocationsFound):
        return _release_stale(state, message, context)
    if isinstance(message, ExclusionRequested | GangChecked):
        return apply_evidence(state, message, context)
    if isinstance(message, QuietHoursChecked):
        return apply_quiet_hours(state, message, context)
    if isinstance(message, SupplyChecked):
        return evolve(
            state,
            no_supply_reason=message.no_supply_reason,
            no_supply_until_ms=message.until_ms,
            needs_scheduling=True,
        )
    settings = settings_of(context)
    if settings.over_budget == message.over_budget:
        return state
    context.write_part("settings", replace(settings, over_budget=message.over_budget))
    if message.raises_events:
        raise_budget_event(state.name, message.over_budget, context)
    return evolve(state, needs_scheduling=True, settings_changed=True)


def _apply_timer(
    state: PoolState, message: SchedulingContinued | PatienceEnded, context: StepContext
) -> PoolState:
    """Apply a timer's message: the end of a job's patience, or a SchedulingContinued.

    A SchedulingContinued removes expired protections from preemption. After an incomplete plan,
    `needs_scheduling` is set already, so the fold ends with a pass in both cases.
    """
    if isinstance(message, PatienceEnded):
        return end_patience(state, message, context)
    return expire_protections(state, context)


def _answer_without_pool(
    state: PoolState | None, message: PoolMessage, context: StepContext
) -> PoolState | None:
    """Answer a message to a pool that does not exist or was removed. Return `state` unchanged.

    A removed pool denies a request for slots by an AllocationExited, since the trial would wait
    forever. The reply to a repeated PoolRemoved is the pool's name. Other messages are dropped.
    """
    if state is not None and isinstance(message, SlotsRequested):
        _deny_slots(message, f"resource pool {state.name} was removed", context)
    if state is not None and isinstance(message, PoolRemoved):
        context.reply = state.name
    return state


def _deny_slots(message: SlotsRequested, text: str, context: StepContext) -> None:
    """Send the trial an AllocationExited with the reason `errored`, as after a failure of the
    allocation.
    """
    failed = AllocationExited(message.epoch, "errored", message=f"the pool: {text}")
    context.send(addresses.trial(message.trial_id), failed)


def _remove_pool(state: PoolState, context: StepContext) -> PoolState:
    """Remove the pool's row and part `settings`. Return a head with `removed`. The reply is the
    pool's name.

    Raises:
        CommandRefused: conflict; the pool has jobs or agents.
    """
    context.reply = state.name
    jobs = [number for number, _ in job_queue_of(context).groups()]
    if jobs or state.agents:
        have = f"{count_text(len(jobs), 'job')} and {count_text(state.agents, 'agent')}"
        text = f"resource pool {state.name} has {have}"
        raise CommandRefused(
            "conflict", f"{text}: drain it, move or end the jobs and stop the agents first"
        )
    context.write_row(POOLS, state.name, None)
    context.write_part("settings", None)
    if context.part(GANG_CHECKS, GangChecks) is not None:
        context.write_part(GANG_CHECKS, None)
    if context.part(AGENT_KINDS, AgentKinds) is not None:
        context.write_part(AGENT_KINDS, None)
    return PoolState(state.name, removed=True)


def _enqueue_request(state: PoolState, message: SlotsRequested, context: StepContext) -> PoolState:
    """Add a request to the queue. A request that is queued or has slots already changes nothing."""
    allocation = f"{message.trial_id}.{message.epoch}"
    request = AllocationRequest(
        allocation,
        message.slots,
        message.ticket,
        message.group,
        excluded_agents=message.excluded_agents,
    )
    if agents_of(context).find_agent(allocation) or not job_queue_of(context).add(request):
        return state
    return evolve(state, queued=state.queued + 1, needs_scheduling=True)


def _release_slots(state: PoolState, message: SlotsReleased, context: StepContext) -> PoolState:
    """Remove an allocation from agents or from the queue. An unknown allocation changes nothing.

    Each agent with slots gets an AllocationRemoved. A trial that withdraws a request may not yet
    know that the allocation was placed, so a release without agents also removes a placed
    allocation.
    """
    allocation = f"{message.trial_id}.{message.epoch}"
    agents, queue = agents_of(context), job_queue_of(context)
    request = AllocationRequest(allocation, 0, message.ticket, message.group)
    if not message.agents and queue.remove(request):
        return evolve(state, queued=state.queued - 1, needs_scheduling=True)
    named = message.agents or _agents_of_allocation(allocation, context)
    for name in named:
        agent = agents.get(name)
        if agent is not None and allocation in agent.parts:
            state = release_part(state, name, allocation, context)
    return state


def _agents_of_allocation(allocation: str, context: StepContext) -> tuple[str, ...]:
    """Return the names of all agents of an allocation with slots, in the order of ranks.

    Return () for an unknown allocation.
    """
    agents = agents_of(context)
    name = agents.find_agent(allocation)
    agent = agents.get(name) if name else None
    if agent is None:
        return ()
    return tuple(place.agent for place in agent.parts[allocation].places) or (name,)


def _release_stale(
    state: PoolState, message: StaleAllocationsFound, context: StepContext
) -> PoolState:
    """Release the allocations that the audit found, and note each in the journal.

    The trials released them before. An allocation without slots and request changes nothing.
    """
    for released in message.stale:
        context.add_reason(f"the audit frees {released.trial_id}.{released.epoch}")
        state = _release_slots(state, released, context)
    return state
