"""Whatever the trace: deadlines that can be met are met, and no policy beats the optimum."""

from itertools import cycle, islice
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.spot.deadline_policies import (
    HOUR_MS,
    POLICIES,
    DeadlineJob,
    JobSnapshot,
    MachineKind,
    Policy,
)
from control_plane.spot.optimum import optimum_cost
from control_plane.spot.replay import ON_DEMAND_PRICE, replay_policy
from control_plane.spot.traces import SpotTrace

MINUTE = 60_000
POLICY = st.sampled_from(list(POLICIES.values()))
ROUNDING = 1e-9
T = TypeVar("T")


@st.composite
def feasible(draw: st.DrawFn, price_max: float = 1.0) -> tuple[DeadlineJob, SpotTrace]:
    """A job in any proportions, and a trace that lasts until its deadline."""
    tick = draw(st.integers(1, 12))
    changeover = draw(st.integers(0, 30))
    work = draw(st.integers(1, 60))
    deadline = work + changeover + draw(st.integers(0, 90))
    spell = draw(st.integers(1, 200))
    ticks = -(-deadline // tick)
    runs = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), min_size=1, max_size=30))
    market = [up for up, length in runs for _ in range(length)]
    prices = draw(st.lists(st.floats(0.05, price_max), min_size=1, max_size=5))
    submitted = draw(st.integers(0, 1000))
    spans = (work, submitted, submitted + deadline, changeover, tick, spell)
    job = DeadlineJob(*(MINUTE * minutes for minutes in spans))
    assert job.is_feasible
    return job, SpotTrace(job.tick_ms, _cycle_values(market, ticks), _cycle_values(prices, ticks))


def _cycle_values(values: list[T], count: int) -> tuple[T, ...]:
    """Return `count` values: these, over and over again."""
    return tuple(islice(cycle(values), count))


@settings(max_examples=400, deadline=None)
@given(feasible(price_max=2.0), POLICY)
def test_every_feasible_deadline_is_met(
    given_: tuple[DeadlineJob, SpotTrace], policy: Policy
) -> None:
    assert replay_policy(policy, *given_).finished_ms is not None


@settings(max_examples=300, deadline=None)
@given(feasible(), POLICY)
def test_a_policy_costs_on_demand_alone_and_its_changeovers_at_most(
    given_: tuple[DeadlineJob, SpotTrace], policy: Policy
) -> None:
    job, trace = given_
    found = replay_policy(policy, job, trace)
    # Whatever is paid is work or a changeover, at the on-demand price at most.
    paid_ms = job.work_ms + found.starts * job.changeover_ms
    assert found.cost <= ON_DEMAND_PRICE * paid_ms / HOUR_MS + ROUNDING
    # Changeovers come out of the slack, but for the first, which on-demand has as well.
    assert found.cost <= ON_DEMAND_PRICE * (job.deadline_ms - job.submitted_ms) / HOUR_MS + ROUNDING


# An optimum takes a while where prices change with every tick.
@settings(max_examples=100, deadline=None)
@given(feasible(price_max=1.5), POLICY)
def test_no_policy_does_better_than_the_optimum(
    given_: tuple[DeadlineJob, SpotTrace], policy: Policy
) -> None:
    optimum = optimum_cost(*given_)
    assert optimum is not None
    assert replay_policy(policy, *given_).cost >= optimum - ROUNDING


@settings(max_examples=60, deadline=None)
@given(feasible(price_max=1.5))
def test_the_optimum_is_that_of_a_search_without_bounds(
    given_: tuple[DeadlineJob, SpotTrace],
) -> None:
    job, trace = given_
    found = optimum_cost(job, trace)
    assert found is not None
    assert abs(found - plain_optimum(job, trace)) <= ROUNDING


@settings(max_examples=200, deadline=None)
@given(feasible(price_max=2.0), st.lists(POLICY, min_size=1, max_size=50))
def test_policies_may_take_turns(
    given_: tuple[DeadlineJob, SpotTrace], turns: list[Policy]
) -> None:
    """Each decision is safe by itself: it does not rely on those before it or after it."""
    job, trace = given_

    def mixed_policy(job: DeadlineJob, standing: JobSnapshot) -> MachineKind:
        tick = (standing.now_ms - job.submitted_ms) // job.tick_ms
        return turns[tick % len(turns)](job, standing)

    assert replay_policy(mixed_policy, job, trace).finished_ms is not None


def plain_optimum(job: DeadlineJob, trace: SpotTrace) -> float:
    """Every place at every tick, nothing given up."""
    known: dict[tuple[MachineKind, int, int], float] = {(MachineKind.NONE, 0, job.work_ms): 0.0}
    best = float("inf")
    length = job.deadline_ms - job.submitted_ms
    for tick, available in enumerate(trace.available):
        after: dict[tuple[MachineKind, int, int], float] = {}
        for (machine, starting, left), cost in known.items():
            for choice in MachineKind:
                if choice is MachineKind.SPOT and not available:
                    continue
                begun = starting if choice is machine else job.changeover_ms
                begun = 0 if choice is MachineKind.NONE else begun
                idle = min(begun, job.tick_ms)
                work = 0 if choice is MachineKind.NONE else min(left, job.tick_ms - idle)
                price = trace.prices[tick] if choice is MachineKind.SPOT else ON_DEMAND_PRICE
                paid = 0 if choice is MachineKind.NONE else idle + work
                total = cost + price * paid / HOUR_MS
                if work == left:
                    if tick * job.tick_ms + paid <= length:
                        best = min(best, total)
                    continue
                place = (choice, begun - idle, left - work)
                after[place] = min(total, after.get(place, float("inf")))
        known = after
    return best
