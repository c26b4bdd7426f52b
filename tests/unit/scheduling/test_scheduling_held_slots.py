"""Plans while slots are held for a job: starts, victims and reasons."""

from collections.abc import Sequence

import pytest

from control_plane.scheduling.model import AgentCapacity, Job, SchedulePlan, SchedulerRules
from control_plane.scheduling.reservations import Reservation, keep_allocations
from control_plane.scheduling.schedule import schedule_jobs, wait_reasons
from tests.unit.scheduling.clusters import (
    FAIR_SHARE,
    PRIORITY,
    ROUND_ROBIN,
    agent,
    job,
    preempted_allocations,
    running_allocation,
    started_requests,
)

FOR_8 = Reservation(9, 8, ("a",), started=5)
HOLDING = pytest.mark.parametrize("rules", [PRIORITY, ROUND_ROBIN])


def plan(
    rules: SchedulerRules, agents: Sequence[AgentCapacity], *jobs: Job, held: Reservation = FOR_8
) -> SchedulePlan:
    return schedule_jobs(jobs, agents, rules, 1000, reservation=held)


@HOLDING
def test_free_held_slots_are_withheld(rules: SchedulerRules) -> None:
    jobs = [job(1, 1, 1), job(9, 8)]
    agents = [agent("a", 8, 5), agent("b", 8, 1)]
    made = plan(rules, agents, *jobs)
    assert [(s.request.group, s.agent) for s in made.starts] == [(1, "b")]
    assert wait_reasons(jobs, agents, rules, reservation=FOR_8) == {
        1: "needs 1 slot, 0 free; 5 slots are held for job 9",
        9: "needs 8 slots; slots are held for it: 5 of 8",
    }


@HOLDING
def test_unneeded_slots_of_held_agents_are_available(rules: SchedulerRules) -> None:
    """The job needs 6 of 8 slots.

    A later allocation uses 1 of the 2 remaining slots.
    """
    held = Reservation(9, 6, ("a",), started=5)
    runs = [running_allocation(f"1{n}", n, ("a", 1)) for n in (4, 5, 6)]
    jobs, agents = [job(1, 1, 1, runs=runs), job(9, 6)], [agent("a", 8, 5)]
    assert started_requests(plan(rules, agents, *jobs, held=held)) == ["1a"]
    reasons = wait_reasons(jobs, agents, rules, reservation=held)
    assert reasons[9] == "needs 6 slots; slots are held for it: 4 of 6"


@pytest.mark.parametrize("rules", [FAIR_SHARE, PRIORITY, ROUND_ROBIN])
def test_reserved_job_starts_first_once_it_fits(rules: SchedulerRules) -> None:
    jobs = [job(1, *[1] * 20), job(9, 8)]
    for agents in ([agent("a", 8)], [agent("a", 8, 3), agent("b", 8)]):
        made = plan(rules, agents, *jobs)
        assert started_requests(made)[0] == "9a"
        assert len(made.starts) == 1 + sum(one.free for one in agents) - 8
        assert not made.victims


def test_more_important_jobs_may_use_held_slots() -> None:
    jobs = [job(1, 1, priority=10), job(2, 1), job(9, 8)]
    made = plan(PRIORITY, [agent("a", 8, 5)], *jobs)
    assert started_requests(made) == ["1a"]
    # While a more important job waits, the reserved job does not start even if it fits.
    jobs = [job(1, 16, priority=10), job(9, 8)]
    agents = [agent("a", 8), agent("b", 8, 7)]
    assert not plan(PRIORITY, agents, *jobs).starts
    reasons = wait_reasons(jobs, agents, PRIORITY, reservation=FOR_8)
    assert reasons[9] == "behind job 1"


def test_fair_share_lends_held_slots_while_blocked() -> None:
    before = running_allocation("2z", 5, ("a", 3))
    jobs = [job(1, *[1] * 5), job(2, runs=[before]), job(9, 8)]
    agents = [agent("a", 8, 5)]
    made = plan(FAIR_SHARE, agents, *jobs)
    assert started_requests(made) == ["1a", "1b", "1c", "1d", "1e"]
    assert not made.victims
    reasons = wait_reasons(jobs, agents, FAIR_SHARE, reservation=FOR_8)
    assert reasons[9] == "needs 8 slots; slots are held for it: 5 of 8"


def test_fair_share_preempts_borrowers_and_withholds_slots() -> None:
    lent = [running_allocation(f"1{n}", 5 + n, ("a", 1)) for n in range(1, 4)]
    jobs = [job(1, 1, 1, runs=lent), job(9, 8)]
    made = plan(FAIR_SHARE, [agent("a", 8, 5)], *jobs)
    assert not made.starts
    assert preempted_allocations(made) == ["13", "12", "11"]
    assert {victim.reason for victim in made.victims} == {"to make room for 9a of job 9"}


def test_fair_share_preempts_only_needed_borrowers() -> None:
    """6 of 8 slots are held and 4 are free: the two youngest of four borrowers are preempted."""
    held = Reservation(9, 6, ("a",), 5)
    lent = [running_allocation(f"1{n}", 5 + n, ("a", 1)) for n in range(1, 5)]
    made = plan(FAIR_SHARE, [agent("a", 8, 4)], job(1, runs=lent), job(9, 6), held=held)
    assert preempted_allocations(made) == ["14", "13"]


def test_started_reserved_job_is_not_preempted_at_once() -> None:
    """By fair share, job 9 would have to return all 8 slots to eight jobs with a slot each."""
    runs = running_allocation("9z", 6, ("a", 8))
    jobs = [*(job(n, 1) for n in range(1, 9)), job(9, runs=[runs])]
    agents = [agent("a", 8, 0)]
    assert preempted_allocations(schedule_jobs(jobs, agents, FAIR_SHARE, 10)) == ["9z"]
    kept = list(keep_allocations(jobs, {"9z": 9}))
    assert not schedule_jobs(kept, agents, FAIR_SHARE, 10).victims


@pytest.mark.parametrize("rules", [FAIR_SHARE, PRIORITY, ROUND_ROBIN])
def test_reservation_without_a_waiting_job_has_no_effect(rules: SchedulerRules) -> None:
    runs = running_allocation("9z", 1, ("b", 1))
    agents = [agent("a", 8, 3), agent("b", 8, 7)]
    for gone in ([], [job(9, 4)], [job(9, 8, runs=[runs])]):
        jobs = [job(1, 1, 1, 1), *gone]
        assert plan(rules, agents, *jobs) == schedule_jobs(jobs, agents, rules, 1000)
