"""The cheapest schedule on a trace that is known in advance: a lower bound for every policy.

Wu et al. (see `deadline_policies.py`, section 5.3) use an integer linear program. This module uses
dynamic programming over the ticks, with branch and bound. A state consists of the machine, the rest
of its changeover and the remaining work. Decisions are made at ticks, as in a replay, so no policy
can be cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from control_plane.spot.deadline_policies import HOUR_MS, POLICIES, DeadlineJob, MachineKind
from control_plane.spot.replay import ON_DEMAND_PRICE, replay_policy
from control_plane.spot.traces import SpotTrace

# A replay sums costs in another order, so that equal costs may differ by rounding.
_ROUNDING = 1e-9

_State = tuple[MachineKind, int]
"""A machine and the rest of its changeover in ms."""
_Costs = dict[_State, dict[int, float]]
"""For each state, the least cost of a path by the work that is left in ms."""


@dataclass(frozen=True, slots=True)
class _TraceRemainder:
    """The rest of a trace from a tick on."""

    spot_ms: int
    """The time in which spot machines are available."""
    price_least: float
    """The lowest price in that time, at most the on-demand price."""


def optimum_cost(job: DeadlineJob, trace: SpotTrace) -> float | None:
    """Return the least cost of finishing in time, in hours of an on-demand machine.

    Return None if no policy finishes in time. Paths with the same state and the same remaining work
    are merged into the cheapest path. Two kinds of paths are dropped:

    - The cost and a bound of the remaining cost together exceed the best known cost.
    - Another path is as cheap and has done at least as much.
    """
    replays = [replay_policy(policy, job, trace) for policy in POLICIES.values()]
    best = min((replay.cost for replay in replays if replay.finished_ms is not None), default=None)
    if best is None:
        return None
    remainders = _remaining_market(job, trace)
    costs: _Costs = {(MachineKind.NONE, 0): {job.work_ms: 0.0}}
    for tick in range(len(remainders) - 1):
        costs, finished = _advance_tick(job, trace, tick, costs, remainders[tick + 1], best)
        best = min(best, finished)
    return best


def _remaining_market(job: DeadlineJob, trace: SpotTrace) -> list[_TraceRemainder]:
    """Return the rest of the trace at each tick before the deadline, and at the deadline."""
    length_ms = job.deadline_ms - job.submitted_ms
    ticks = min(len(trace.available), -(-length_ms // job.tick_ms))
    remainders = [_TraceRemainder(0, ON_DEMAND_PRICE)]
    for tick in reversed(range(ticks)):
        spot_ms, price = remainders[-1].spot_ms, remainders[-1].price_least
        if trace.available[tick]:
            spot_ms += min(job.tick_ms, length_ms - tick * job.tick_ms)
            price = min(price, trace.prices[tick])
        remainders.append(_TraceRemainder(spot_ms, price))
    return remainders[::-1]


def _advance_tick(
    job: DeadlineJob,
    trace: SpotTrace,
    tick: int,
    costs: _Costs,
    remainder: _TraceRemainder,
    best: float,
) -> tuple[_Costs, float]:
    """Extend all paths by a tick.

    Return the remaining states with their costs, and the least cost of all finished paths.

    Args:
        remainder: the rest of the trace after the tick.
        best: the least known cost of a finished path.
    """
    time_left_ms = job.deadline_ms - job.submitted_ms - (tick + 1) * job.tick_ms
    after_tick: _Costs = {}
    for state, paths in costs.items():
        for machine, starting_ms in _choices(job, trace.available[tick], state):
            price = trace.prices[tick] if machine is MachineKind.SPOT else ON_DEMAND_PRICE
            idle_ms = min(starting_ms, job.tick_ms)
            worked_ms = 0 if machine is MachineKind.NONE else job.tick_ms - idle_ms
            paid = price * (idle_ms + worked_ms) / HOUR_MS
            paths_after = after_tick.setdefault((machine, starting_ms - idle_ms), {})
            for left_ms, cost in paths.items():
                rest_ms = left_ms - worked_ms
                if rest_ms <= 0:
                    if idle_ms + left_ms <= time_left_ms + job.tick_ms:
                        best = min(best, cost + price * (idle_ms + left_ms) / HOUR_MS)
                    continue
                if rest_ms <= time_left_ms and cost + paid < paths_after.get(rest_ms, best):
                    paths_after[rest_ms] = cost + paid
    kept = {
        state: _undominated_paths(job, state[0], paths, remainder, best)
        for state, paths in after_tick.items()
    }
    return kept, best


def _choices(job: DeadlineJob, available: bool, state: _State) -> Iterator[_State]:
    """Yield the states that a decision in `state` can lead to at the start of a tick."""
    machine, starting_ms = state
    yield MachineKind.NONE, 0
    yield (
        MachineKind.ON_DEMAND,
        starting_ms if machine is MachineKind.ON_DEMAND else job.changeover_ms,
    )
    if available:
        yield MachineKind.SPOT, starting_ms if machine is MachineKind.SPOT else job.changeover_ms


def _undominated_paths(
    job: DeadlineJob,
    machine: MachineKind,
    paths: dict[int, float],
    remainder: _TraceRemainder,
    best: float,
) -> dict[int, float]:
    """Return the paths that can still lead to a lower cost than `best`.

    A path with more work left must be cheaper than every path with less.
    """
    kept: dict[int, float] = {}
    cheapest = best
    for left_ms in sorted(paths):
        cost = paths[left_ms]
        bound = cost + _cost_bound(job, machine, left_ms, remainder)
        if cost < cheapest and bound < best - _ROUNDING:
            cheapest = cost
            kept[left_ms] = cost
    return kept


def _cost_bound(
    job: DeadlineJob, machine: MachineKind, left_ms: int, remainder: _TraceRemainder
) -> float:
    """Return a lower bound of the cost of the remaining work on the rest of a trace."""
    spot_ms = min(left_ms, remainder.spot_ms)
    paid = remainder.price_least * spot_ms + ON_DEMAND_PRICE * (left_ms - spot_ms)
    if machine is MachineKind.NONE:
        paid += remainder.price_least * job.changeover_ms
    if machine is not MachineKind.ON_DEMAND and left_ms > spot_ms:
        paid += (
            ON_DEMAND_PRICE - remainder.price_least * (machine is MachineKind.NONE)
        ) * job.changeover_ms
    return paid / HOUR_MS
