"""What a trial's allocations cost: rates from the assignment of slots to their release.

The experiment is told the rate when slots are assigned and the sum when they are given back, for
trials of which either is known or that have a deadline. A machine that is lost costs until it was
last heard of: what it costs from then on nobody used.
"""

from control_plane.actors import addresses
from control_plane.actors.cost import (
    Usage,
    cost_of,
    rates_of,
    usage_of,
    usage_sort,
    written_usage,
)
from control_plane.actors.experiment_messages import TrialMetered
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import AllocationLost
from control_plane.actors.trial_state import Allocation, TrialState
from control_plane.evolve import evolve


def priced(state: TrialState, allocation: Allocation, turn: Turn) -> TrialState:
    """The allocation has its places: its meter runs."""
    rates = rates_of(allocation.places, allocation.pool, turn)
    allocation = evolve(allocation, rates=rates)
    if sum(rates) or state.settings.deadline_ms is not None:
        _tell(state, state.cost_micros, sum(rates), True, turn)
    return evolve(state, allocation=allocation)


def silenced(
    state: TrialState, allocation: Allocation, message: AllocationLost, turn: Turn
) -> Allocation:
    """An agent of the allocation was lost, and costs nothing from when it was last heard of."""
    allocation = _late_priced(allocation, turn)
    heard_ms = turn.now_ms if message.heard_ms is None else min(turn.now_ms, message.heard_ms)
    gone = {message.agent} if message.agent in allocation.agents else {*allocation.agents}
    spent, rates = allocation.spent_micros, []
    for agent, rate in zip(allocation.agents, allocation.rates, strict=False):
        spent += cost_of(rate, heard_ms - allocation.placed_ms) if agent in gone else 0
        rates.append(0 if agent in gone else rate)
    if tuple(rates) == allocation.rates:
        return allocation
    _tell(state, state.cost_micros + spent, sum(rates), True, turn, allocation.placed_ms)
    return evolve(allocation, rates=tuple(rates), spent_micros=spent)


def settled(state: TrialState, allocation: Allocation, turn: Turn) -> TrialState:
    """The allocation has ended: its cost is the trial's."""
    if not allocation.places:
        return state
    allocation = _late_priced(allocation, turn)
    cost = cost_so_far(allocation, turn.now_ms)
    if cost:
        usage = Usage(
            state.experiment_id,
            state.trial_id,
            state.epoch,
            allocation.placed_ms,
            turn.now_ms,
            cost,
        )
        turn.write_row(usage_of(allocation.pool), usage_sort(usage), written_usage(usage))
    state = evolve(state, cost_micros=state.cost_micros + cost)
    if allocation.rates or state.settings.deadline_ms is not None:
        _tell(state, state.cost_micros, 0, False, turn)
    return state


def cost_so_far(allocation: Allocation, now_ms: int) -> int:
    """What an allocation has cost by `now_ms`."""
    running_ms = now_ms - allocation.placed_ms
    return allocation.spent_micros + sum(cost_of(rate, running_ms) for rate in allocation.rates)


def _late_priced(allocation: Allocation, turn: Turn) -> Allocation:
    """One whose machine enrolled before its row was written has cost what it costs all along."""
    if allocation.rates or not allocation.places:
        return allocation
    return evolve(allocation, rates=rates_of(allocation.places, allocation.pool, turn))


def _tell(
    state: TrialState,
    cost_micros: int,
    rate_micros: int,
    holds_slots: bool,
    turn: Turn,
    since_ms: int | None = None,
) -> None:
    message = TrialMetered(
        number=state.number,
        epoch=state.epoch,
        cost_micros=cost_micros,
        rate_micros=rate_micros,
        since_ms=turn.now_ms if since_ms is None else since_ms,
        holds_slots=holds_slots,
    )
    turn.send(addresses.experiment(state.experiment_id), message)
