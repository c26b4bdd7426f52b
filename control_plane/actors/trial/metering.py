"""The metering of a trial's allocations, from the assignment of slots to the release.

The experiment gets the rate when slots are assigned, and the cost when they are released. Only
trials with priced machines or a deadline are metered. A lost machine is metered until its last sign
of life.
"""

from control_plane.actors import addresses
from control_plane.actors.cost import (
    Usage,
    cost_of,
    encode_usage,
    place_rates,
    usage_partition,
    usage_sort_key,
)
from control_plane.actors.messages.experiment import TrialMetered
from control_plane.actors.messages.trial import AllocationLost
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import Allocation, TrialState
from control_plane.actors.use import Use, sum_uses, use_values
from control_plane.evolve import evolve


def start_metering(state: TrialState, allocation: Allocation, context: StepContext) -> TrialState:
    """Store the rates of an allocation with new places, and return the state.

    The experiment gets a TrialMetered only if the rates are not 0 or the trial has a deadline.
    """
    sharers = state.settings.slot_sharers
    rates = place_rates(allocation.places, allocation.pool, sharers, context)
    allocation = evolve(allocation, rates=rates)
    if sum(rates) or state.settings.deadline_ms is not None:
        _send_metered(state, state.cost_micros, sum(rates), True, context)
    return evolve(state, allocation=allocation)


def stop_metering_agent(
    state: TrialState, allocation: Allocation, message: AllocationLost, context: StepContext
) -> Allocation:
    """Stop metering a lost agent, from the time of the agent's last contact.

    Return the updated allocation: the agent's cost is in `spent_micros`, and its rate is 0. If the
    rates changed, the experiment gets a TrialMetered. If the agent is not one of the allocation's,
    all agents are lost.
    """
    allocation = _with_rates(state, allocation, context)
    last_contact_ms = context.now_ms
    if message.last_contact_ms is not None:
        last_contact_ms = min(context.now_ms, message.last_contact_ms)
    gone = {message.agent} if message.agent in allocation.agents else {*allocation.agents}
    spent, rates = allocation.spent_micros, []
    for agent, rate in zip(allocation.agents, allocation.rates, strict=False):
        spent += cost_of(rate, last_contact_ms - allocation.placed_ms) if agent in gone else 0
        rates.append(0 if agent in gone else rate)
    if tuple(rates) == allocation.rates:
        return allocation
    _send_metered(state, state.cost_micros + spent, sum(rates), True, context, allocation.placed_ms)
    return evolve(allocation, rates=tuple(rates), spent_micros=spent)


def finish_metering(state: TrialState, allocation: Allocation, context: StepContext) -> TrialState:
    """Add the cost and the use of an ended allocation to the trial's, and return the state.

    A usage row is written if the cost is not 0 or the use was measured. The experiment gets a
    TrialMetered if the rates are known, the use was measured, or the trial has a deadline. Nothing
    happens for a queued allocation.
    """
    if not allocation.places:
        return state
    allocation = _with_rates(state, allocation, context)
    cost, use = cost_so_far(allocation, context.now_ms), use_of(state, allocation)
    has_slots = state.settings.low_use or use
    if cost or use:
        usage = Usage(
            state.experiment_id,
            state.trial_id,
            state.epoch,
            allocation.placed_ms,
            context.now_ms,
            cost,
            slots_of(state, allocation) if has_slots else 0,
            *use_values(use),
        )
        context.write_row(
            usage_partition(allocation.pool), usage_sort_key(usage), encode_usage(usage)
        )
    state = evolve(state, cost_micros=state.cost_micros + cost, use=sum_uses(state.use, use))
    if allocation.rates or use or state.settings.deadline_ms is not None:
        _send_metered(state, state.cost_micros, 0, False, context)
    return state


def cost_so_far(allocation: Allocation, now_ms: int) -> int:
    """Return the allocation's cost at `now_ms` in micro-dollars.

    The cost is `spent_micros` of lost agents, plus each rate for the time since `placed_ms`. Each
    rate's share is rounded down. Unknown rates add 0, and so does a `now_ms` before `placed_ms`.
    """
    running_ms = now_ms - allocation.placed_ms
    return allocation.spent_micros + sum(cost_of(rate, running_ms) for rate in allocation.rates)


def slots_of(state: TrialState, allocation: Allocation) -> float:
    """Return the number of slots of an allocation: below 1 for a share of a slot."""
    slots = sum(len(place.slots) for place in allocation.places)
    sharers = state.settings.slot_sharers
    return slots if sharers == 1 else slots / sharers


def use_of(state: TrialState, allocation: Allocation) -> Use | None:
    """Return the use of an allocation's slots, or the allocation's part of a shared slot's use.

    Agents measure the use of whole slots. Return None without measured time.
    """
    use, sharers = sum_uses(*allocation.uses), state.settings.slot_sharers
    return use if use is None or sharers == 1 else use.share_among(sharers)


def _with_rates(state: TrialState, allocation: Allocation, context: StepContext) -> Allocation:
    """Return the allocation with known rates.

    A machine may have enrolled before its instance row was written, so missing rates are read
    again. These rates count from the start of the allocation. The rates stay empty if no instance
    row exists.
    """
    if allocation.rates or not allocation.places:
        return allocation
    sharers = state.settings.slot_sharers
    rates = place_rates(allocation.places, allocation.pool, sharers, context)
    return evolve(allocation, rates=rates)


def _send_metered(
    state: TrialState,
    cost_micros: int,
    rate_micros: int,
    holds_slots: bool,
    context: StepContext,
    since_ms: int | None = None,
) -> None:
    """Send the experiment a TrialMetered.

    Args:
        cost_micros: the cost of slots that the trial no longer holds, in micro-dollars.
        rate_micros: the rate of the held slots, in micro-dollars per hour.
        holds_slots: whether the allocation still holds slots.
        since_ms: the time from which the rate counts, in epoch ms. None: now.
    """
    message = TrialMetered(
        number=state.number,
        epoch=state.epoch,
        cost_micros=cost_micros,
        rate_micros=rate_micros,
        since_ms=context.now_ms if since_ms is None else since_ms,
        holds_slots=holds_slots,
        use=state.use,
    )
    context.send(addresses.experiment(state.experiment_id), message)
