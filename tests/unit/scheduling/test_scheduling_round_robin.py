"""Round robin: the order of turns."""

from tests.unit.scheduling.clusters import (
    ROUND_ROBIN,
    agent,
    job,
    make_plan,
    preempted_allocations,
    running_allocation,
    started_requests,
)


def test_jobs_alternate() -> None:
    plan = make_plan(ROUND_ROBIN, [agent("a", 5)], job(1, 1, 1, 1), job(2, 1, 1), job(3, 1))
    assert started_requests(plan) == ["1a", "2a", "3a", "1b", "2b"]
    assert plan.wait_reason == "needs 1 slot, 0 free"


def test_job_with_fewest_slots_is_first() -> None:
    runs = [running_allocation("r1", 1, ("b", 2))]
    jobs = (job(1, 1, 1, runs=runs), job(2, 1, 1))
    assert started_requests(make_plan(ROUND_ROBIN, [agent("a", 3), agent("b", 2, 0)], *jobs)) == [
        "2a",
        "1a",
        "2b",
    ]


def test_priorities_positions_and_weights_do_not_matter() -> None:
    jobs = (job(1, 1, priority=99, weight=0.1), job(2, 1, priority=1, weight=9.0))
    assert started_requests(make_plan(ROUND_ROBIN, [agent("a", 1)], *jobs)) == ["1a"]


def test_job_with_unfitting_next_request_drops_out() -> None:
    # 8 fit nowhere, so job 1's second request is not looked at.
    plan = make_plan(ROUND_ROBIN, [agent("a", 4)], job(1, 8, 1), job(2, 1))
    assert started_requests(plan) == ["2a"]


def test_request_that_fitted_before_the_plan_keeps_the_turn() -> None:
    # Job 1's request takes agent a. Job 2's first request fitted a before the plan, but finds no
    # place now. Job 2 stays in the rounds, and its second request gets b.
    plan = make_plan(ROUND_ROBIN, [agent("a", 4), agent("b", 1)], job(1, 4), job(2, 4, 1))
    assert started_requests(plan) == ["1a", "2b"]


def test_preempts_only_beyond_max_slots() -> None:
    runs = [running_allocation(f"r{n}", n, ("a", 1)) for n in range(1, 5)]
    full = [agent("a", 4, 0)]
    assert preempted_allocations(make_plan(ROUND_ROBIN, full, job(1, runs=runs), job(2, 1))) == []
    limited = make_plan(ROUND_ROBIN, full, job(1, runs=runs, max_slots=3), job(2, 1))
    assert preempted_allocations(limited) == ["r4"]


def test_job_drops_out_at_max_slots() -> None:
    plan = make_plan(ROUND_ROBIN, [agent("a", 8)], job(1, 1, 1, 1, max_slots=2), job(2, 1, 1, 1))
    assert started_requests(plan) == ["1a", "2a", "1b", "2b", "2c"]
