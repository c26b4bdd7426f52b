"""Requests that exclude agents, with each scheduler and with reservations."""

import time
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    Job,
    Placement,
    SchedulerRules,
    job_with_totals,
)
from control_plane.scheduling.reservations import Reservation, renew_reservation
from control_plane.scheduling.schedule import schedule_jobs, wait_reasons
from tests.unit.scheduling.clusters import (
    FAIR_SHARE,
    PREEMPTION,
    PRIORITY,
    ROUND_ROBIN,
    agent,
    job,
    make_plan,
    preempted_allocations,
    running_allocation,
    started_requests,
)

ALL_RULES = pytest.mark.parametrize(
    "rules", [FAIR_SHARE, PRIORITY, PREEMPTION, ROUND_ROBIN], ids=lambda rules: str(rules.kind)
)


def excluding_job(group: int, *slots: int, without: tuple[str, ...], **settings: Any) -> Job:
    """Return a job whose requests all exclude the agents `without`."""
    plain = job(group, *slots, **settings)
    pending = [replace(request, excluded_agents=without) for request in plain.pending]
    return job_with_totals(replace(plain, pending=pending))


def places(plan: Any) -> list[str]:
    """Return the agents of the first start, in the order of ranks."""
    return [place.agent for place in plan.starts[0].placements]


@ALL_RULES
@pytest.mark.parametrize("slots", [0, 1, 4])
def test_request_starts_only_on_other_agents(rules: SchedulerRules, slots: int) -> None:
    agents = [agent("a", 4), agent("b", 4), agent("c", 4)]
    plan = make_plan(rules, agents, excluding_job(1, slots, without=("a", "c", "gone")))
    assert places(plan) == ["b"]


@ALL_RULES
def test_gang_starts_only_on_other_agents(rules: SchedulerRules) -> None:
    agents = [agent(name, 4) for name in "abcd"]
    plan = make_plan(rules, agents, excluding_job(1, 8, without=("b", "c")))
    assert sorted(places(plan)) == ["a", "d"]


@ALL_RULES
def test_request_waits_if_all_agents_are_excluded(rules: SchedulerRules) -> None:
    agents = [agent("a", 4), agent("b", 4, 0)]
    one = excluding_job(1, 4, without=("a", "b"))
    assert make_plan(rules, agents, one).starts == ()
    assert wait_reasons([one], agents, rules) == {
        1: "a log policy excludes the agents that could run it: a, b"
    }


@ALL_RULES
def test_reason_of_wait_names_excluded_agents_with_free_slots(rules: SchedulerRules) -> None:
    runs = [running_allocation("2z", 1, ("b", 4), preemptible=False)]
    agents = [agent("a", 4), agent("b", 4, 0)]
    jobs = [excluding_job(1, 4, without=("a",)), job(2, runs=runs)]
    assert wait_reasons(jobs, agents, rules)[1] == (
        "needs 4 slots, free only on agents that a log policy excludes: a"
    )


@ALL_RULES
def test_other_requests_use_the_excluded_agent(rules: SchedulerRules) -> None:
    agents = [agent("a", 4)]
    plan = make_plan(rules, agents, excluding_job(1, 4, without=("a",)), job(2, 4))
    assert started_requests(plan) == ["2a"]


@ALL_RULES
def test_requests_of_the_same_job_use_the_excluded_agent(rules: SchedulerRules) -> None:
    one = job(1, 4, 4)
    first, second = one.pending
    pending = [replace(first, excluded_agents=("a",)), second]
    plan = make_plan(rules, [agent("a", 4)], job_with_totals(replace(one, pending=pending)))
    assert started_requests(plan) == ["1b"]


def test_priority_does_not_block_behind_impossible_request() -> None:
    agents = [agent("a", 4)]
    first = excluding_job(1, 4, without=("a",), priority=1)
    assert started_requests(make_plan(PRIORITY, agents, first, job(2, 4, priority=9))) == ["2a"]
    # A pool that grows may get an agent for the request.
    plan = schedule_jobs([first, job(2, 4, priority=9)], agents, PRIORITY, 10, can_grow=True)
    assert plan.starts == ()


def test_preemption_takes_slots_of_other_agents() -> None:
    runs = [running_allocation("9x", 1, ("a", 4)), running_allocation("9y", 2, ("b", 4))]
    low = job(9, runs=runs, priority=50)
    agents = [agent("a", 4, 0), agent("b", 4, 0)]
    for without, victim in (("a", "9y"), ("b", "9x")):
        high = excluding_job(1, 4, without=(without,), priority=1)
        assert preempted_allocations(make_plan(PREEMPTION, agents, high, low)) == [victim]
    never = excluding_job(1, 4, without=("a", "b"), priority=1)
    assert preempted_allocations(make_plan(PREEMPTION, agents, never, low)) == []


def test_skipped_victims_serve_later_requests() -> None:
    runs = [running_allocation("9x", 1, ("a", 4)), running_allocation("9y", 2, ("b", 4))]
    low = job(9, runs=runs, priority=50)
    # The youngest allocation 9y on b is skipped for the first request, and stopped for the second.
    first = excluding_job(1, 4, without=("b",), priority=1)
    plan = make_plan(PREEMPTION, [agent("a", 4, 0), agent("b", 4, 0)], first, job(2, 4), low)
    assert sorted(preempted_allocations(plan)) == ["9x", "9y"]


def test_fair_share_preempts_no_allocation_on_excluded_agents() -> None:
    runs = [running_allocation(f"9{name}", n, (name, 4)) for n, name in enumerate("ab")]
    hog, agents = job(9, runs=runs), [agent("a", 4, 0), agent("b", 4, 0)]
    plan = make_plan(FAIR_SHARE, agents, hog, excluding_job(10, 4, without=("a",)))
    assert preempted_allocations(plan) == ["9b"]
    plan = make_plan(FAIR_SHARE, agents, hog, excluding_job(10, 4, without=("a", "b")))
    assert preempted_allocations(plan) == []


def test_fair_share_preempts_while_only_the_excluded_agent_is_free() -> None:
    runs = [running_allocation("9x", 1, ("b", 4)), running_allocation("9y", 2, ("c", 4))]
    agents = [agent("a", 4), agent("b", 4, 0), agent("c", 4, 0)]
    # The shares of 12 slots are 8 and 4, so that job 9 gives nothing back.
    plan = make_plan(FAIR_SHARE, agents, job(9, runs=runs), excluding_job(10, 4, without=("a",)))
    assert (plan.starts, plan.victims) == ((), ())
    # With the double weight, job 10 may get 8 slots.
    heavy = excluding_job(10, 4, 4, without=("a",), weight=2.0)
    plan = make_plan(FAIR_SHARE, agents, job(9, runs=runs), heavy)
    assert preempted_allocations(plan) == ["9x"]


def test_impossible_request_claims_no_share() -> None:
    agents = [agent("a", 4)]
    hog = job(9, 1, 1, 1, 1)
    plan = make_plan(FAIR_SHARE, agents, hog, excluding_job(10, 4, without=("a",)))
    assert started_requests(plan) == ["9a", "9b", "9c", "9d"]


def test_reservation_avoids_excluded_agents() -> None:
    def reserve(waiting: Job, current: Reservation | None = None) -> Reservation | None:
        agents = [agent("a", 8, 7), agent("b", 8, 0)]
        return renew_reservation(
            [waiting], agents, ROUND_ROBIN, current, after_ms=10, now_ms=100, started=3
        )

    plain = job(1, 8, waits_since_ms=0)
    assert reserve(plain) == Reservation(1, 8, ("a",), 3)
    excluding = excluding_job(1, 8, without=("a",), waits_since_ms=0)
    on_b = Reservation(1, 8, ("b",), 3)
    assert reserve(excluding) == on_b
    assert reserve(excluding, on_b) is on_b
    assert reserve(excluding, Reservation(1, 8, ("a",), 3)) == on_b
    assert reserve(excluding_job(1, 8, without=("a", "b"), waits_since_ms=0)) is None


def test_reserved_request_starts_only_on_other_agents() -> None:
    waiting = excluding_job(1, 8, without=("a",), waits_since_ms=0)
    held = Reservation(1, 8, ("b",), 0)
    agents: list[AgentCapacity] = [agent("a", 8), agent("b", 8, 4)]
    plan = schedule_jobs([waiting, job(2, 4)], agents, ROUND_ROBIN, 10, reservation=held)
    assert started_requests(plan) == ["2a"]
    assert plan.starts[0].agent == "a"
    agents = [agent("a", 8), agent("b", 8)]
    plan = schedule_jobs([waiting], agents, ROUND_ROBIN, 10, reservation=held)
    assert places(plan) == ["b"]


@pytest.mark.parametrize("slots", [0, 2, 4])
def test_search_for_places_takes_nothing(slots: int) -> None:
    agents = AgentSet([agent("a", 4, 3, aux_free=5), agent("b", 2), agent("c", 2, 0)])
    request = AllocationRequest("1a", slots, excluded_agents=("a", "c", "a"))
    first = agents.find_placements(request)
    assert first == (() if slots == 4 else (Placement("b", slots),))
    plain = AllocationRequest("1a", 3)
    assert agents.find_placements(request) == first
    assert agents.find_placements(plain) == (Placement("a", 3),)
    assert agents.count_free_slots() == 5


@pytest.mark.parametrize("heterogeneous", [False, True])
@pytest.mark.parametrize("single_agent", [False, True])
def test_excluding_request_fits_the_set_without_the_excluded_agents(
    heterogeneous: bool, single_agent: bool
) -> None:
    agents = [
        agent("a", 4),
        agent("b", 4, 0),
        agent("c", 2),
        agent("d", 0),
        replace(agent("e", 8), draining=True),
        replace(agent("f", 1), aux_total=0),
    ]
    whole = AgentSet(agents, "best", heterogeneous)
    for count in range(len(agents) + 1):
        for excluded in combinations("abcdefx", count):
            others = [one for one in agents if one.agent not in excluded]
            other_set = AgentSet(others, "best", heterogeneous)
            for slots in range(13):
                fits = whole.sizes.can_ever_fit(slots, single_agent, excluded_agents=excluded)
                assert fits == other_set.sizes.can_ever_fit(slots, single_agent), (excluded, slots)


def test_plan_time_with_many_excluding_requests_is_short() -> None:
    agents = [agent(f"a{number:04}", 8, 0) for number in range(1000)]
    waiting = excluding_job(1, *[8] * 1000, without=("a0001", "a0002", "a0003"))
    began = time.process_time()
    make_plan(PREEMPTION, agents, waiting)
    # A set of agents for each request would take 0.4 s.
    assert time.process_time() - began < 0.2
