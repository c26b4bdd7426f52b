"""Rules that all schedulers share: labels, limits of a plan, and reasons."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from control_plane.scheduling.model import AllocationRequest, SchedulePlan, SchedulerRules
from control_plane.scheduling.schedule import schedule_jobs, wait_reasons
from tests.unit.scheduling.clusters import (
    FAIR_SHARE,
    PREEMPTION,
    PRIORITY,
    ROUND_ROBIN,
    agent,
    job,
    make_plan,
    running_allocation,
    started_requests,
)

ALL = (FAIR_SHARE, PRIORITY, PREEMPTION, ROUND_ROBIN)


@pytest.mark.parametrize("rules", ALL)
def test_plan_without_jobs_or_agents_is_empty(rules: SchedulerRules) -> None:
    assert make_plan(rules, [agent("a", 4)]) == SchedulePlan(())
    assert make_plan(rules, [], job(1, 1)) == SchedulePlan((), (), "there is no agent")
    assert make_plan(rules, [], job(1)) == SchedulePlan(())


@pytest.mark.parametrize("rules", ALL)
def test_labels_divide_the_agents(rules: SchedulerRules) -> None:
    agents = [agent("a", 2), agent("b", 2, label="x")]
    jobs = (job(1, 1, 1, 1), job(2, 1, 1, 1, label="x"), job(3, 1, label="y"))
    plan = make_plan(rules, agents, *jobs)
    assert [(start.request.allocation_id, start.agent) for start in plan.starts] == [
        ("1a", "a"),
        ("1b", "a"),
        ("2a", "b"),
        ("2b", "b"),
    ]
    assert wait_reasons(jobs, agents, rules)[3] == "no agent has the label y"


@pytest.mark.parametrize("rules", ALL)
def test_plan_has_at_most_starts_max_starts(rules: SchedulerRules) -> None:
    agents = [agent("a", 2, aux_free=1), agent("b", 2, label="x")]
    jobs = (job(1, 0, 1, 1), job(2, 1, 1, label="x"))
    for starts_max in range(6):
        assert len(make_plan(rules, agents, *jobs, starts_max=starts_max).starts) == min(
            starts_max, 5
        )


@pytest.mark.parametrize("rules", ALL)
def test_request_that_never_fits_gets_advice(
    rules: SchedulerRules,
) -> None:
    agents = [agent("a", 8), agent("b", 8), agent("c", 8)]
    jobs = (job(1, 12), job(2, 12, single_agent=True), job(3, 8, priority=1))
    reasons = wait_reasons(jobs, agents, rules)
    assert reasons == {
        1: "needs 12 slots: agents have 8; it would fit with 8, 16 or 24",
        2: "needs 12 slots on one agent: agents have 8; it would fit with 8",
    }
    assert started_requests(make_plan(rules, agents, *jobs)) == ["3a"]


@pytest.mark.parametrize("rules", ALL)
def test_reason_of_gang_names_whole_agents(rules: SchedulerRules) -> None:
    agents = [agent("a", 8, 7), agent("b", 8), agent("c", 8, 7)]
    runs = [running_allocation("r1", 1, ("a", 1)), running_allocation("r2", 2, ("c", 1))]
    # No allocation behind job 2 can be preempted.
    jobs = (job(1, runs=runs), job(2, 16))
    reason = "needs 16 slots on agents without other work, 8 free there"
    assert wait_reasons(jobs, agents, rules) == {2: reason}
    assert make_plan(rules, agents, *jobs).wait_reason == reason


@dataclass(frozen=True)
class ReadRecorder:
    """Requests that record every read."""

    requests: tuple[AllocationRequest, ...]
    read: list[str]

    def __iter__(self) -> Iterator[AllocationRequest]:
        for request in self.requests:
            self.read.append(request.allocation_id)
            yield request


@pytest.mark.parametrize("rules", ALL)
def test_reads_only_requests_that_may_start(
    rules: SchedulerRules,
) -> None:
    many = job(1, *[1] * 26)
    read: list[str] = []
    lazy = replace(many, pending=ReadRecorder(tuple(many.pending), read))
    plan = schedule_jobs([lazy], [agent("a", 8, 3)], rules, 256)
    assert len(plan.starts) == 3
    # The three starts and a request without a place, and again the first requests for the reason.
    assert set(read) <= {"1a", "1b", "1c", "1d"}
    read.clear()
    # In a full pool, only the first request is read, for the reason.
    assert schedule_jobs([lazy], [agent("a", 8, 0)], rules, 256).starts == ()
    assert set(read) <= {"1a"}


def test_reads_no_requests_of_a_job_at_the_limit() -> None:
    many = job(1, *[1] * 26, max_slots=0)
    read: list[str] = []
    lazy = replace(many, pending=ReadRecorder(tuple(many.pending), read))
    for rules in ALL:
        assert (
            schedule_jobs([lazy], [agent("a", 8)], rules, 256).wait_reason == "max_slots 0 reached"
        )
        assert set(read) <= {"1a"}
