"""The schedulers' common entry: a snapshot of a pool in, a plan out, by the scheduler its rules
name.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from sys import maxsize

from control_plane.scheduling import fair_share, priority, round_robin
from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.held_slots import plan_with_reservation
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    AllocationStart,
    Job,
    SchedulePlan,
    SchedulerRules,
    Victim,
)
from control_plane.scheduling.reservations import Reservation
from control_plane.scheduling.scheduling_result import SchedulingResult
from control_plane.scheduling.sizes import slots_text


def schedule_jobs(
    jobs: Iterable[Job],
    agents: Iterable[AgentCapacity],
    rules: SchedulerRules,
    starts_max: int,
    *,
    can_grow: bool = False,
    reservation: Reservation | None = None,
) -> SchedulePlan:
    """Plan which requests to start, at most `starts_max`, and which allocations to preempt.

    Labels divide the pool: jobs of one label see only agents of the same, and are scheduled as if
    there were nothing else. The order of jobs, agents and allocations makes no difference; pending
    requests come by ticket. `can_grow`: agents may come that hold what these never could.
    `reservation`: agents that are held for a job while it waits.
    """
    starts: list[AllocationStart] = []
    victims: list[Victim] = []
    waits = ""
    for of_label, agents_of in _split_by_label(jobs, agents):
        starts_left = starts_max - len(starts)
        outcome = _plan_label(of_label, agents_of, rules, starts_left, can_grow, reservation)
        starts += outcome.starts
        victims += outcome.victims
        waits = waits or next(_wait_reasons(outcome), (0, ""))[1]
    return SchedulePlan(tuple(starts), tuple(victims), waits)


def wait_reasons(
    jobs: Iterable[Job],
    agents: Iterable[AgentCapacity],
    rules: SchedulerRules,
    *,
    can_grow: bool = False,
    reservation: Reservation | None = None,
) -> dict[int, str]:
    """The reason why each job waits that still does after a plan: "needs 8 slots, 6 free; behind
    job 12". Arguments are those of `schedule_jobs`.
    """
    planned = plan_waits(jobs, agents, rules, can_grow=can_grow, reservation=reservation)
    return planned.reasons()


def plan_waits(
    jobs: Iterable[Job],
    agents: Iterable[AgentCapacity],
    rules: SchedulerRules,
    *,
    can_grow: bool = False,
    reservation: Reservation | None = None,
) -> "PlannedWaits":
    """The waits of the jobs after a plan, whose reasons are found when they are asked for.
    Arguments are those of `schedule_jobs`.
    """
    return PlannedWaits(
        _plan_label(of_label, agents_of, rules, maxsize, can_grow, reservation)
        for of_label, agents_of in _split_by_label(jobs, agents)
    )


class PlannedWaits:
    """The jobs that still wait after a plan. A reason costs a look at the job's requests, so that
    those of a few among ten thousand jobs cost next to nothing.
    """

    def __init__(self, outcomes: Iterable[SchedulingResult]) -> None:
        self._outcomes = tuple(outcomes)

    def reasons(self, groups: Container[int] | None = None) -> dict[int, str]:
        """The reason of each job that waits, or of those among `groups`."""
        return dict(
            reason for outcome in self._outcomes for reason in _wait_reasons(outcome, groups)
        )


def _split_by_label(
    jobs: Iterable[Job], agents: Iterable[AgentCapacity]
) -> Iterator[tuple[Sequence[Job], Sequence[AgentCapacity]]]:
    """The jobs of each label and the agents for them."""
    jobs_of: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        jobs_of[job.label].append(job)
    agents_of: dict[str, list[AgentCapacity]] = defaultdict(list)
    for agent in agents:
        agents_of[agent.label].append(agent)
    for label in sorted(jobs_of):
        yield jobs_of[label], agents_of[label]


def _plan_label(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    rules: SchedulerRules,
    starts_max: int,
    can_grow: bool,
    reservation: Reservation | None,
) -> SchedulingResult:
    """Plan the jobs and agents of one label."""

    def run(jobs: Sequence[Job], agents: Sequence[AgentCapacity], most: int) -> SchedulingResult:
        agent_set = AgentSet(agents, rules.fitting, rules.heterogeneous)
        return _run_scheduler(jobs, agent_set, rules, most, can_grow)

    if reservation is None:
        return run(jobs, agents, starts_max)
    return plan_with_reservation(jobs, agents, rules, starts_max, reservation, run)


def _run_scheduler(
    jobs: Sequence[Job],
    agent_set: AgentSet,
    rules: SchedulerRules,
    starts_max: int,
    can_grow: bool,
) -> SchedulingResult:
    match rules.kind:
        case "fair_share":
            return fair_share.plan(jobs, agent_set, starts_max)
        case "priority":
            return _enforce_max_slots(
                jobs, priority.plan(jobs, agent_set, rules.preemption, starts_max, can_grow)
            )
        case "round_robin":
            return _enforce_max_slots(jobs, round_robin.plan(jobs, agent_set, starts_max))


def _enforce_max_slots(jobs: Iterable[Job], outcome: SchedulingResult) -> SchedulingResult:
    """Preempt what jobs have beyond their max_slots, the youngest first. Fair shares never exceed
    it.
    """
    going = {victim.allocation.allocation_id for victim in outcome.victims}
    for job in jobs:
        if job.max_slots is not None and job.held_slots - job.leaving_slots > job.max_slots:
            outcome.victims.extend(_victims_beyond(job, job.max_slots, going))
    return outcome


def _victims_beyond(job: Job, max_slots: int, going: set[str]) -> Iterator[Victim]:
    staying = [
        one
        for one in job.allocations
        if not one.leaving and one.allocation_id not in going and one.slots
    ]
    excess = sum(one.slots for one in staying) - max_slots
    for running in sorted(staying, key=lambda one: one.start, reverse=True):
        if excess <= 0:
            return
        if running.preemptible:
            yield Victim(running, f"job {job.group} may have {slots_text(max_slots)} at most now")
            excess -= running.slots


def _wait_reasons(
    outcome: SchedulingResult, groups: Container[int] | None = None
) -> Iterator[tuple[int, str]]:
    """The jobs that still wait, as they are served, and why; those of `groups` alone if given."""
    started: dict[int, dict[str, int]] = defaultdict(dict)
    for start in outcome.starts:
        started[start.request.group][start.request.allocation_id] = start.request.slots
    for job in outcome.order:
        if groups is not None and job.group not in groups:
            continue
        begun = started.get(job.group, {})
        if sum(job.pending_slots.values()) > len(begun):
            request = _first_pending(job, begun)
            if request is not None:
                yield job.group, outcome.wait_reason(job, request, sum(begun.values()))


def _first_pending(job: Job, started: dict[str, int]) -> AllocationRequest | None:
    return next((one for one in job.pending if one.allocation_id not in started), None)
