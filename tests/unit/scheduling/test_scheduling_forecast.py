"""Forecasts of when waiting jobs start."""

from control_plane.scheduling.forecast import expected_starts
from tests.unit.scheduling.clusters import (
    FAIR_SHARE,
    PREEMPTION,
    PRIORITY,
    agent,
    job,
    running_allocation,
)

NOW_MS = 1_000


def test_fitting_request_starts_now() -> None:
    assert expected_starts([job(1, 4)], [agent("a", 4)], PRIORITY, now_ms=NOW_MS, ends_ms={}) == {
        1: NOW_MS
    }


def test_job_starts_when_enough_slots_are_free() -> None:
    runs = [running_allocation("r1", 1, ("a", 2)), running_allocation("r2", 2, ("a", 2))]
    jobs = [job(1, runs=runs), job(2, 2), job(3, 4)]
    ends = {"r1": 5_000, "r2": 3_000}
    agents = [agent("a", 4, 0)]
    # Job 2 gets r2's slots at 3000, for ever; job 3 never gets all four.
    assert expected_starts(jobs, agents, PRIORITY, now_ms=NOW_MS, ends_ms=ends) == {
        2: 3_000,
        3: None,
    }
    # With runs of 10 s, job 2 ends at 13000 and r1 at 5000.
    starts = expected_starts(
        jobs, agents, PRIORITY, now_ms=NOW_MS, ends_ms=ends, run_ms={2: 10_000}
    )
    assert starts == {2: 3_000, 3: 13_000}


def test_start_is_unknown_without_expected_end() -> None:
    runs = [running_allocation("r1", 1, ("a", 4))]
    jobs = [job(1, runs=runs), job(2, 2)]
    known = expected_starts(jobs, [agent("a", 4, 0)], PRIORITY, now_ms=NOW_MS, ends_ms={})
    assert known == {2: None}
    # A request that never fits does not start either.
    assert expected_starts([job(1, 9)], [agent("a", 4)], PRIORITY, now_ms=NOW_MS, ends_ms={}) == {
        1: None
    }


def test_past_end_is_expected_now() -> None:
    runs = [running_allocation("r1", 1, ("a", 4), ("b", 4)), running_allocation("r2", 2, ("a", 0))]
    jobs = [job(1, runs=runs), job(2, 8), job(3, 0)]
    agents = [agent("a", 4, 0, aux_free=0), agent("b", 4, 0, aux_free=0)]
    starts = expected_starts(jobs, agents, PRIORITY, now_ms=NOW_MS, ends_ms={"r1": 5, "r2": 2_000})
    assert starts == {2: NOW_MS, 3: 2_000}


def test_preempting_job_starts_now_and_victim_resumes() -> None:
    runs = [running_allocation("r1", 1, ("a", 4))]
    jobs = [job(1, runs=runs), job(2, 4, priority=1), job(3, 4, priority=50)]
    starts = expected_starts(
        jobs,
        [agent("a", 4, 0)],
        PREEMPTION,
        now_ms=NOW_MS,
        ends_ms={"r1": 4_000},
        run_ms={2: 10_000},
    )
    # Job 2 from 1000 to 11000, then the 3000 that r1 has left, until 14000.
    assert starts == {2: NOW_MS, 3: 14_000}


def test_slots_of_draining_agent_are_not_freed() -> None:
    runs = [running_allocation("r1", 1, ("a", 4))]
    jobs = [job(1, runs=runs), job(2, 4)]
    drains = [agent("a", 4, 0, aux_free=0, draining=True)]
    starts = expected_starts(jobs, drains, FAIR_SHARE, now_ms=NOW_MS, ends_ms={"r1": 4_000})
    assert starts == {2: None}


def test_forecast_stops_after_plans_max() -> None:
    jobs = [job(n, 4) for n in range(1, 6)]
    starts = expected_starts(
        jobs,
        [agent("a", 4)],
        PRIORITY,
        now_ms=0,
        ends_ms={},
        run_ms=dict.fromkeys(range(1, 6), 10),
        plans_max=3,
    )
    assert starts == {1: 0, 2: 10, 3: 20, 4: None, 5: None}
