"""The cheapest schedule on a trace that is known in advance: a lower bound for every policy.

Wu et al. (see `deadline_policies.py`), section 5.3, find it by an integer linear program. Here it
is dynamic programming over the ticks, by the machine, the rest of its changeover and the work that
is left, with bounds (branch and bound). Decisions are taken at ticks, as in a replay: no policy
does better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from control_plane.spot.deadline_policies import HOUR_MS, POLICIES, DeadlineJob, MachineKind
from control_plane.spot.replay import ON_DEMAND_PRICE, replay_policy
from control_plane.spot.traces import SpotTrace

# The tolerance of costs, which are summed in another order than in a replay.
_ROUNDING = 1e-9

_State = tuple[MachineKind, int]
_Costs = dict[_State, dict[int, float]]


@dataclass(frozen=True, slots=True)
class _TraceRemainder:
    """The rest of a trace from a tick on: time with spot machines, and their least price."""

    spot_ms: int
    price_least: float


def optimum_cost(job: DeadlineJob, trace: SpotTrace) -> float | None:
    """The least cost, in hours of an on-demand machine; None if even that cannot meet the deadline.

    States with the same work left keep the cheapest path to them. A path is dropped when its cost
    and a bound of the rest exceed the cheapest policy's cost, or when another path is as cheap and
    has done as much.
    """
    replays = [replay_policy(policy, job, trace) for policy in POLICIES.values()]
    best = min((replay.cost for replay in replays if replay.finished_ms is not None), default=None)
    if best is None:
        return None
    ahead = _remaining_market(job, trace)
    costs: _Costs = {(MachineKind.NONE, 0): {job.work_ms: 0.0}}
    for tick in range(len(ahead) - 1):
        costs, finished = _advance_tick(job, trace, tick, costs, ahead[tick + 1], best)
        best = min(best, finished)
    return best


def _remaining_market(job: DeadlineJob, trace: SpotTrace) -> list[_TraceRemainder]:
    """The rest of the trace at each tick before the deadline, and at the deadline."""
    length_ms = job.deadline_ms - job.submitted_ms
    ticks = min(len(trace.available), -(-length_ms // job.tick_ms))
    rest = [_TraceRemainder(0, ON_DEMAND_PRICE)]
    for tick in reversed(range(ticks)):
        spot_ms, price = rest[-1].spot_ms, rest[-1].price_least
        if trace.available[tick]:
            spot_ms += min(job.tick_ms, length_ms - tick * job.tick_ms)
            price = min(price, trace.prices[tick])
        rest.append(_TraceRemainder(spot_ms, price))
    return rest[::-1]


def _advance_tick(
    job: DeadlineJob,
    trace: SpotTrace,
    tick: int,
    costs: _Costs,
    ahead: _TraceRemainder,
    best: float,
) -> tuple[_Costs, float]:
    """The states after a tick, and the least cost of paths that finished in it."""
    left_of_time_ms = job.deadline_ms - job.submitted_ms - (tick + 1) * job.tick_ms
    after_tick: _Costs = {}
    for state, paths in costs.items():
        for machine, starting_ms in _choices(job, trace.available[tick], state):
            price = trace.prices[tick] if machine is MachineKind.SPOT else ON_DEMAND_PRICE
            idle_ms = min(starting_ms, job.tick_ms)
            worked_ms = 0 if machine is MachineKind.NONE else job.tick_ms - idle_ms
            paid = price * (idle_ms + worked_ms) / HOUR_MS
            after = after_tick.setdefault((machine, starting_ms - idle_ms), {})
            for left_ms, cost in paths.items():
                rest_ms = left_ms - worked_ms
                if rest_ms <= 0:
                    if idle_ms + left_ms <= left_of_time_ms + job.tick_ms:
                        best = min(best, cost + price * (idle_ms + left_ms) / HOUR_MS)
                    continue
                if rest_ms <= left_of_time_ms and cost + paid < after.get(rest_ms, best):
                    after[rest_ms] = cost + paid
    kept = {
        state: _undominated_paths(job, state[0], paths, ahead, best)
        for state, paths in after_tick.items()
    }
    return kept, best


def _choices(job: DeadlineJob, available: bool, state: _State) -> Iterator[_State]:
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
    ahead: _TraceRemainder,
    best: float,
) -> dict[int, float]:
    kept: dict[int, float] = {}
    cheapest = best
    for left_ms in sorted(paths):
        cost = paths[left_ms]
        if cost < cheapest and cost + _cost_bound(job, machine, left_ms, ahead) < best - _ROUNDING:
            cheapest = cost
            kept[left_ms] = cost
    return kept


def _cost_bound(
    job: DeadlineJob, machine: MachineKind, left_ms: int, ahead: _TraceRemainder
) -> float:
    """A lower bound of the rest's cost."""
    spot_ms = min(left_ms, ahead.spot_ms)
    paid = ahead.price_least * spot_ms + ON_DEMAND_PRICE * (left_ms - spot_ms)
    if machine is MachineKind.NONE:
        paid += ahead.price_least * job.changeover_ms
    if machine is not MachineKind.ON_DEMAND and left_ms > spot_ms:
        paid += (
            ON_DEMAND_PRICE - ahead.price_least * (machine is MachineKind.NONE)
        ) * job.changeover_ms
    return paid / HOUR_MS
