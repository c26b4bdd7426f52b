"""Every feasible deadline is met, and no policy beats the optimum."""

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
    """Return a job of any proportions, and a trace until the job's deadline."""
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
    """Return `count` values, cycling through `values`."""
    return tuple(islice(cycle(values), count))


@settings(max_examples=200, deadline=None)
@given(feasible(price_max=2.0), POLICY)
def test_every_feasible_deadline_is_met(
    given_: tuple[DeadlineJob, SpotTrace], policy: Policy
) -> None:
    assert replay_policy(policy, *given_).finished_ms is not None


@settings(max_examples=150, deadline=None)
@given(feasible(), POLICY)
def test_policy_costs_at_most_on_demand_with_changeovers(
    given_: tuple[DeadlineJob, SpotTrace], policy: Policy
) -> None:
    job, trace = given_
    outcome = replay_policy(policy, job, trace)
    # Every paid time is work or a changeover, at most at the on-demand price.
    paid_ms = job.work_ms + outcome.starts * job.changeover_ms
    assert outcome.cost <= ON_DEMAND_PRICE * paid_ms / HOUR_MS + ROUNDING
    # Changeovers use up the slack, except the first, which on-demand also has.
    assert (
        outcome.cost <= ON_DEMAND_PRICE * (job.deadline_ms - job.submitted_ms) / HOUR_MS + ROUNDING
    )


# An optimum takes a while where prices change with every tick.
@settings(max_examples=100, deadline=None)
@given(feasible(price_max=1.5), POLICY)
def test_policy_is_never_better_than_the_optimum(
    given_: tuple[DeadlineJob, SpotTrace], policy: Policy
) -> None:
    optimum = optimum_cost(*given_)
    assert optimum is not None
    assert replay_policy(policy, *given_).cost >= optimum - ROUNDING


@settings(max_examples=30, deadline=None)
@given(feasible(price_max=1.5))
def test_optimum_equals_the_result_of_an_unbounded_search(
    given_: tuple[DeadlineJob, SpotTrace],
) -> None:
    job, trace = given_
    optimum = optimum_cost(job, trace)
    assert optimum is not None
    assert abs(optimum - plain_optimum(job, trace)) <= ROUNDING


@settings(max_examples=100, deadline=None)
@given(feasible(price_max=2.0), st.lists(POLICY, min_size=1, max_size=50))
def test_policies_may_alternate(given_: tuple[DeadlineJob, SpotTrace], turns: list[Policy]) -> None:
    """Each decision is safe alone, independent of earlier and later decisions."""
    job, trace = given_

    def mixed_policy(job: DeadlineJob, standing: JobSnapshot) -> MachineKind:
        tick = (standing.now_ms - job.submitted_ms) // job.tick_ms
        return turns[tick % len(turns)](job, standing)

    assert replay_policy(mixed_policy, job, trace).finished_ms is not None


def plain_optimum(job: DeadlineJob, trace: SpotTrace) -> float:
    """Return the optimum by trying every place at every tick, without pruning."""
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
