"""Priority: starts, waits and preemption."""

from decimal import Decimal

from control_plane.scheduling.schedule import schedule_jobs, wait_reasons
from tests.unit.scheduling.clusters import (
    PREEMPTION,
    PRIORITY,
    agent,
    job,
    make_plan,
    preempted_allocations,
    running_allocation,
    started_requests,
)


def test_most_important_jobs_start_first() -> None:
    jobs = (job(1, 1), job(2, 1, priority=1), job(3, 1, priority=99))
    assert started_requests(make_plan(PRIORITY, [agent("a", 8)], *jobs)) == ["2a", "1a", "3a"]
    assert started_requests(make_plan(PRIORITY, [agent("a", 2)], *jobs)) == ["2a", "1a"]


def test_position_then_ticket_decide_within_priority() -> None:
    moved = job(3, 1, position=Decimal("500.5"))
    jobs = (job(1, 1), job(2, 1), moved)
    assert started_requests(make_plan(PRIORITY, [agent("a", 8)], *jobs)) == ["3a", "1a", "2a"]
    # Two jobs at the same position start requests by ticket. Tickets begin with the submission.
    together = (job(1, 1, 1, submitted_ms=5), job(2, 1, 1, submitted_ms=5))
    assert started_requests(make_plan(PRIORITY, [agent("a", 8)], *together)) == [
        "1a",
        "2a",
        "1b",
        "2b",
    ]


def test_preempted_job_resumes_before_younger_jobs() -> None:
    # The younger of two goes when a more important job comes, and resumes before the youngest.
    older, younger = running_allocation("r1", 1, ("a", 4)), running_allocation("r2", 2, ("b", 4))
    agents = [agent("a", 4, 0), agent("b", 4, 0)]
    important = job(4, 4, priority=1)
    plan = make_plan(PREEMPTION, agents, job(1, runs=[older]), job(2, runs=[younger]), important)
    assert preempted_allocations(plan) == ["r2"]
    # The important job has ended on b. Job 2 is pending again, and job 3 was submitted meanwhile.
    free = [agent("a", 4, 0), agent("b", 4)]
    later = make_plan(PREEMPTION, free, job(1, runs=[older]), job(2, 4), job(3, 4))
    assert started_requests(later) == ["2a"]
    assert preempted_allocations(later) == []


def test_smaller_job_of_same_priority_overtakes() -> None:
    plan = make_plan(PRIORITY, [agent("a", 4)], job(1, 8), job(2, 4))
    assert started_requests(plan) == ["2a"]


def test_lower_priorities_wait_behind_blocked_job() -> None:
    agents = [agent("a", 8, 6)]
    jobs = (job(12, 8, priority=1), job(13, 8), job(14, 2))
    plan = make_plan(PRIORITY, agents, *jobs)
    assert started_requests(plan) == []
    assert plan.wait_reason == "needs 8 slots, 6 free"
    assert wait_reasons(jobs, agents, PRIORITY) == {
        12: "needs 8 slots, 6 free",
        13: "needs 8 slots, 6 free; behind job 12",
        14: "behind job 12",
    }


def test_preemptible_requests_are_backfilled() -> None:
    runs = [running_allocation("r1", 1, ("a", 2), preemptible=False)]
    jobs = (job(1, runs=runs), job(12, 8, priority=1), job(14, 2))
    plan = make_plan(PREEMPTION, [agent("a", 8, 6)], *jobs)
    # Nothing can be preempted for job 12. Job 14 uses the 6 free slots meanwhile.
    assert started_requests(plan) == ["14a"]
    assert preempted_allocations(plan) == []


def test_preempts_from_back_of_queue_and_starts_later() -> None:
    runs = [
        job(1, runs=[running_allocation("r1", 1, ("a", 4))]),
        job(2, runs=[running_allocation("r2", 2, ("b", 4))]),
        job(3, runs=[running_allocation("r3", 3, ("c", 4))], priority=99),
    ]
    agents = [agent(name, 4, 0) for name in "abc"]
    asking = job(9, 4, 4, priority=1)
    plan = make_plan(PREEMPTION, agents, *runs, asking)
    # 9a takes r3's place, of the lowest priority; 9b that of r2, which is behind r1.
    assert preempted_allocations(plan) == ["r3", "r2"]
    assert started_requests(plan) == []
    assert plan.victims[1].reason == "to make room for 9b of job 9"
    assert plan.wait_reason == "needs 4 slots, 0 free; what makes room for it has not left yet"


def test_youngest_allocation_of_a_job_is_preempted_first() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in (3, 1, 4, 2)]
    plan = make_plan(PREEMPTION, [agent("a", 4, 0)], job(1, runs=runs), job(2, 2, priority=1))
    assert preempted_allocations(plan) == ["r4", "r3"]


def test_all_candidates_before_the_fit_are_preempted() -> None:
    # r3 on agent a does not help, but is a candidate before r2, so r3 is preempted as well.
    runs = [
        running_allocation("r1", 1, ("a", 4)),
        running_allocation("r2", 2, ("b", 4)),
        running_allocation("r3", 3, ("a", 4)),
        running_allocation("r4", 4, ("c", 4)),
    ]
    agents = [agent("a", 8, 0), agent("b", 4, 0), agent("c", 4, 0)]
    plan = make_plan(PREEMPTION, agents, job(1, runs=runs), job(2, 8, priority=1))
    # From the back: r4 (c: 4 free), r3 (a: 4), r2 (b: 4 free; b and c are whole, 2 x 4 = 8).
    assert preempted_allocations(plan) == ["r4", "r3", "r2"]


def test_no_preemption_if_the_request_still_would_not_fit() -> None:
    runs = [
        running_allocation("r1", 1, ("a", 4)),
        running_allocation("r2", 2, ("a", 4), preemptible=False),
    ]
    plan = make_plan(PREEMPTION, [agent("a", 8, 0)], job(1, runs=runs), job(2, 8, priority=1))
    assert preempted_allocations(plan) == []


def test_no_more_victims_while_allocations_stop() -> None:
    runs = [
        running_allocation("r1", 1, ("a", 4)),
        running_allocation("r2", 2, ("b", 4), leaving=True),
    ]
    agents = [agent("a", 4, 0), agent("b", 4, 0)]
    asking = job(2, 4, priority=1)
    plan = make_plan(PREEMPTION, agents, job(1, runs=runs), asking)
    assert preempted_allocations(plan) == []
    assert started_requests(plan) == []
    # Nor does anybody of lower priority get slots that are free: someone is leaving for job 2.
    agents.append(agent("c", 2))
    assert (
        started_requests(make_plan(PREEMPTION, agents, job(1, runs=runs), asking, job(3, 2))) == []
    )


def test_own_priority_is_preempted_only_from_behind() -> None:
    runs = [running_allocation("r1", 1, ("a", 1))]
    ahead = job(2, 1, position=Decimal(500))
    behind = job(2, 1)
    unplaced = job(1, runs=runs, position=Decimal(0))
    agents = [agent("a", 1, 0)]
    # The second job of the manual's example was moved ahead of the first, which runs.
    assert preempted_allocations(make_plan(PREEMPTION, agents, job(1, runs=runs), ahead)) == ["r1"]
    assert preempted_allocations(make_plan(PREEMPTION, agents, job(1, runs=runs), behind)) == []
    assert preempted_allocations(make_plan(PRIORITY, agents, job(1, runs=runs), ahead)) == []
    # An entry without a position is behind no other entry.
    assert preempted_allocations(make_plan(PREEMPTION, agents, unplaced, ahead)) == []


def test_zero_slot_requests_do_not_wait_for_slots() -> None:
    agents = [agent("a", 4, 0, aux_free=1)]
    jobs = (job(1, 8, priority=1), job(2, 0))
    assert started_requests(make_plan(PRIORITY, agents, *jobs)) == ["2a"]
    # The same with exchanged sizes.
    full = [agent("a", 4, aux_free=0)]
    assert started_requests(make_plan(PRIORITY, full, job(1, 0, priority=1), job(2, 4))) == ["2a"]


def test_zero_slot_requests_preempt_zero_slot_allocations_only() -> None:
    runs = [running_allocation("r1", 1, ("a", 4)), running_allocation("r2", 2, ("a", 0))]
    agents = [agent("a", 4, 0, aux_total=1, aux_free=0)]
    plan = make_plan(PREEMPTION, agents, job(1, runs=runs), job(2, 0, priority=1))
    assert preempted_allocations(plan) == ["r2"]


def test_job_at_max_slots_does_not_block_later_jobs() -> None:
    runs = [running_allocation("r1", 1, ("a", 2))]
    jobs = (job(1, 2, 2, runs=runs, max_slots=3, priority=1), job(2, 2))
    agents = [agent("a", 8, 6)]
    assert started_requests(make_plan(PRIORITY, agents, *jobs)) == ["2a"]
    assert wait_reasons(jobs, agents, PRIORITY) == {1: "max_slots 3 reached"}


def test_smaller_max_slots_preempts_youngest_without_preemption() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(1, 5)]
    plan = make_plan(PRIORITY, [agent("a", 4, 0)], job(1, runs=runs, max_slots=2))
    assert preempted_allocations(plan) == ["r4", "r3"]
    assert plan.victims[0].reason == "job 1 may now use at most 2 slots"


def test_gang_preempts_until_enough_agents_are_unused() -> None:
    runs = [
        running_allocation("r1", 1, ("a", 8)),
        running_allocation("r2", 2, ("b", 4)),
        running_allocation("r3", 3, ("c", 8)),
        running_allocation("r4", 4, ("b", 4)),
    ]
    agents = [agent("a", 8, 0), agent("b", 8, 0), agent("c", 8, 0)]
    plan = make_plan(PREEMPTION, agents, job(1, runs=runs), job(2, 16, priority=1))
    # r4 frees half of b, r3 all of c, r2 the rest of b: b and c are two whole agents.
    assert preempted_allocations(plan) == ["r4", "r3", "r2"]


def test_freed_slots_are_reserved_for_the_preempting_job() -> None:
    # Job 2 is stopping for job 1, and two of its trials have stopped: 2 slots of b are free.
    runs = [
        running_allocation(f"r{n}", n, ("a" if n < 4 else "b", 1), leaving=True) for n in range(6)
    ]
    agents = [agent("a", 4, 0), agent("b", 4, 2)]
    jobs = (job(1, 8), job(2, 1, 1, runs=runs))
    plan = make_plan(PREEMPTION, agents, *jobs)
    assert started_requests(plan) == []
    assert preempted_allocations(plan) == []
    assert wait_reasons(jobs, agents, PREEMPTION) == {
        1: "needs 8 slots, 2 free; what makes room for it has not left yet",
        2: "behind job 1",
    }


def test_preempting_own_priority_blocks_jobs_behind() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(4)]
    agents = [agent("a", 4, 0), agent("b", 4)]
    plan = make_plan(PREEMPTION, agents, job(1, 8), job(2, 1, 1, runs=runs))
    assert started_requests(plan) == []
    assert preempted_allocations(plan) == ["r3", "r2", "r1", "r0"]
    assert plan.victims[0].reason == "to make room for 1a of job 1"


def test_jobs_ahead_start_during_a_preemption() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(4)]
    agents = [agent("a", 4, 0), agent("b", 4), agent("c", 2)]
    plan = make_plan(PREEMPTION, agents, job(1, 2), job(2, 8), job(3, 1, 1, runs=runs))
    assert started_requests(plan) == ["1a"]
    assert preempted_allocations(plan) == ["r3", "r2", "r1", "r0"]


def test_preempting_lower_priorities_lets_equals_overtake() -> None:
    runs = [running_allocation("r1", 1, ("a", 4))]
    agents = [agent("a", 4, 0), agent("b", 4, 2)]
    asking = (job(1, 4), job(2, 1))
    plan = make_plan(PREEMPTION, agents, *asking, job(3, runs=runs, priority=50))
    assert started_requests(plan) == ["2a"]
    assert preempted_allocations(plan) == ["r1"]


def test_request_that_never_fits_does_not_block_later_jobs() -> None:
    agents = [agent("a", 8, 4), agent("b", 8, 0)]
    jobs = (job(1, 12, priority=1), job(2, 2, priority=50))
    for rules in (PRIORITY, PREEMPTION):
        assert started_requests(make_plan(rules, agents, *jobs)) == ["2a"]
        assert wait_reasons(jobs, agents, rules) == {
            1: "needs 12 slots: agents have 8; it would fit with 8 or 16"
        }
    # A possible request blocks.
    possible = (job(1, 16, priority=1), job(2, 2, priority=50))
    assert started_requests(make_plan(PRIORITY, agents, *possible)) == []


def test_request_for_growing_pool_blocks_lower_priorities() -> None:
    # The second machine of the gang is booting. The first must stay free meanwhile.
    jobs = (job(1, 16, priority=1), job(2, 8, priority=50))
    plan = schedule_jobs(jobs, [agent("a", 8)], PRIORITY, 10, can_grow=True)
    assert started_requests(plan) == []


def test_fitting_requests_block_despite_a_request_that_never_fits() -> None:
    agents = [agent("a", 8, 4)]
    jobs = (job(1, 12, 8, priority=1), job(2, 2, priority=50))
    assert started_requests(make_plan(PRIORITY, agents, *jobs)) == []
