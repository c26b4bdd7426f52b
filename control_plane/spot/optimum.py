"""The cheapest way through a trace for who knows all of it: a bound for every policy.

Wu et al. (see `deadline.py`), section 5.3, find it by an integer linear program. Here it is dynamic
programming over the ticks, by what runs, what is left of its changeover and the work that is left,
with bounds (branch and bound). Decisions are taken at ticks, as in a replay: no policy does better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from control_plane.spot.deadline import HOUR_MS, POLICIES, Job, Machine
from control_plane.spot.replay import ON_DEMAND_PRICE, replay
from control_plane.spot.traces import SpotTrace

# Of costs, which are sums in another order than that of a replay.
_ROUNDING = 1e-9

_Place = tuple[Machine, int]
_Costs = dict[_Place, dict[int, float]]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What is to come from a tick on: milliseconds with spot machines, and their least price."""

    spot_ms: int
    price_least: float


def optimum_cost(job: Job, trace: SpotTrace) -> float | None:
    """In hours of an on-demand machine; None if even that cannot meet the deadline.

    Places with the same work left keep the cheapest way to them. A way is given up when what it
    has cost and a bound of what is to come pass the cheapest policy, or when another way is as
    cheap and has done as much.
    """
    found = [replay(policy, job, trace) for policy in POLICIES.values()]
    best = min((it.cost for it in found if it.finished_ms is not None), default=None)
    if best is None:
        return None
    ahead = _ahead(job, trace)
    costs: _Costs = {(Machine.NONE, 0): {job.work_ms: 0.0}}
    for tick in range(len(ahead) - 1):
        costs, finished = _next(job, trace, tick, costs, ahead[tick + 1], best)
        best = min(best, finished)
    return best


def _ahead(job: Job, trace: SpotTrace) -> list[_Ahead]:
    """Of each tick before the deadline, and of the deadline."""
    length_ms = job.deadline_ms - job.submitted_ms
    ticks = min(len(trace.available), -(-length_ms // job.tick_ms))
    found = [_Ahead(0, ON_DEMAND_PRICE)]
    for tick in reversed(range(ticks)):
        spot_ms, price = found[-1].spot_ms, found[-1].price_least
        if trace.available[tick]:
            spot_ms += min(job.tick_ms, length_ms - tick * job.tick_ms)
            price = min(price, trace.prices[tick])
        found.append(_Ahead(spot_ms, price))
    return found[::-1]


def _next(
    job: Job, trace: SpotTrace, tick: int, costs: _Costs, ahead: _Ahead, best: float
) -> tuple[_Costs, float]:
    """The places after a tick, and the least cost of the work that was done in it."""
    left_of_time_ms = job.deadline_ms - job.submitted_ms - (tick + 1) * job.tick_ms
    found: _Costs = {}
    for place, ways in costs.items():
        for machine, starting_ms in _choices(job, trace.available[tick], place):
            price = trace.prices[tick] if machine is Machine.SPOT else ON_DEMAND_PRICE
            idle_ms = min(starting_ms, job.tick_ms)
            worked_ms = 0 if machine is Machine.NONE else job.tick_ms - idle_ms
            paid = price * (idle_ms + worked_ms) / HOUR_MS
            after = found.setdefault((machine, starting_ms - idle_ms), {})
            for left_ms, cost in ways.items():
                rest_ms = left_ms - worked_ms
                if rest_ms <= 0:
                    if idle_ms + left_ms <= left_of_time_ms + job.tick_ms:
                        best = min(best, cost + price * (idle_ms + left_ms) / HOUR_MS)
                    continue
                if rest_ms <= left_of_time_ms and cost + paid < after.get(rest_ms, best):
                    after[rest_ms] = cost + paid
    kept = {place: _kept(job, place[0], ways, ahead, best) for place, ways in found.items()}
    return kept, best


def _choices(job: Job, available: bool, place: _Place) -> Iterator[_Place]:
    machine, starting_ms = place
    yield Machine.NONE, 0
    yield Machine.ON_DEMAND, starting_ms if machine is Machine.ON_DEMAND else job.changeover_ms
    if available:
        yield Machine.SPOT, starting_ms if machine is Machine.SPOT else job.changeover_ms


def _kept(
    job: Job, machine: Machine, ways: dict[int, float], ahead: _Ahead, best: float
) -> dict[int, float]:
    kept: dict[int, float] = {}
    cheapest = best
    for left_ms in sorted(ways):
        cost = ways[left_ms]
        if cost < cheapest and cost + _least(job, machine, left_ms, ahead) < best - _ROUNDING:
            cheapest = cost
            kept[left_ms] = cost
    return kept


def _least(job: Job, machine: Machine, left_ms: int, ahead: _Ahead) -> float:
    """What the rest costs at least."""
    spot_ms = min(left_ms, ahead.spot_ms)
    paid = ahead.price_least * spot_ms + ON_DEMAND_PRICE * (left_ms - spot_ms)
    if machine is Machine.NONE:
        paid += ahead.price_least * job.changeover_ms
    if machine is not Machine.ON_DEMAND and left_ms > spot_ms:
        paid += (
            ON_DEMAND_PRICE - ahead.price_least * (machine is Machine.NONE)
        ) * job.changeover_ms
    return paid / HOUR_MS
