"""The common entry of the schedulers: a snapshot of a pool in, a plan out."""

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
from detcloud.shared.plurals import count_text


def schedule_jobs(
    jobs: Iterable[Job],
    agents: Iterable[AgentCapacity],
    rules: SchedulerRules,
    starts_max: int,
    *,
    can_grow: bool = False,
    reservation: Reservation | None = None,
) -> SchedulePlan:
    """Plan which requests to start and which allocations to preempt. Nothing is changed.

    Labels divide the pool: jobs of a label are planned on the agents of this label, independently
    of other labels. The result does not depend on the order of jobs, agents and allocations. The
    plan is empty without jobs.

    Args:
        jobs: jobs with their pending requests in the order of tickets.
        starts_max: the maximum number of starts, for all labels together.
        can_grow: whether larger agents or more agents may join the pool. With the priority
            scheduler, a request that no agent fits then waits and blocks others.
        reservation: the agents that are held for a job. None holds no agents.
    """
    starts: list[AllocationStart] = []
    victims: list[Victim] = []
    wait_reason = ""
    for label_jobs, label_agents in _split_by_label(jobs, agents):
        starts_left = starts_max - len(starts)
        outcome = _plan_label(label_jobs, label_agents, rules, starts_left, can_grow, reservation)
        starts += outcome.starts
        victims += outcome.victims
        wait_reason = wait_reason or next(_wait_reasons(outcome), (0, ""))[1]
    return SchedulePlan(tuple(starts), tuple(victims), wait_reason)


def wait_reasons(
    jobs: Iterable[Job],
    agents: Iterable[AgentCapacity],
    rules: SchedulerRules,
    *,
    can_grow: bool = False,
    reservation: Reservation | None = None,
) -> dict[int, str]:
    """Return why each job still waits after a plan, as a text by experiment id.

    A reason is for example "needs 8 slots, 6 free; behind job 12". Jobs without a waiting request
    are left out. The plan has no limit on starts. The arguments are those of `schedule_jobs`.
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
    """Plan without a limit on starts, and return the waits of the jobs that still wait.

    Reasons are computed on demand, by `PlannedWaits.reasons`. The arguments are those of
    `schedule_jobs`.
    """
    return PlannedWaits(
        _plan_label(label_jobs, label_agents, rules, maxsize, can_grow, reservation)
        for label_jobs, label_agents in _split_by_label(jobs, agents)
    )


class PlannedWaits:
    """The jobs that still wait after a plan.

    Computing a reason reads the job's requests. So reasons of a few jobs are cheap even in a queue
    of ten thousand jobs.

    Args:
        outcomes: the results of the scheduler, for each label.
    """

    def __init__(self, outcomes: Iterable[SchedulingResult]) -> None:
        self._outcomes = tuple(outcomes)

    def reasons(self, groups: Container[int] | None = None) -> dict[int, str]:
        """Return the reason of each waiting job by experiment id, in the order of service of each
        label.

        Args:
            groups: the experiment ids of the jobs to look at. None for all jobs. Jobs that do not
                wait are left out.
        """
        return dict(
            reason for outcome in self._outcomes for reason in _wait_reasons(outcome, groups)
        )


def _split_by_label(
    jobs: Iterable[Job], agents: Iterable[AgentCapacity]
) -> Iterator[tuple[Sequence[Job], Sequence[AgentCapacity]]]:
    """Yield the jobs of each label and the agents of the label, sorted by label.

    Skip labels without jobs. The agents are empty for a label without agents.
    """
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
    """Plan the jobs of a label on the agents of the label, with the scheduler of the rules. Nothing
    is changed.

    Slots that the reservation holds are lent or withheld. A reservation for a job of another label
    has no effect.

    Args:
        starts_max: the maximum number of starts for this label.
        can_grow: whether larger agents or more agents may join the pool. With the priority
            scheduler, a request that no agent fits then waits and blocks others.
        reservation: the agents that are held for a job. None holds no agents.
    """

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
    """Run the scheduler of the rules, and preempt allocations beyond `max_slots`.

    The slots of the starts are taken in `agent_set`.

    Args:
        starts_max: the maximum number of starts.
        can_grow: whether larger agents or more agents may join the pool. Only the priority
            scheduler reads this.
    """
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
    """Add victims for slots that jobs hold beyond `max_slots`, the youngest allocations first.

    Changes `outcome` and returns it. The fair-share scheduler enforces `max_slots` itself.
    """
    victim_ids = {victim.allocation.allocation_id for victim in outcome.victims}
    for job in jobs:
        if job.max_slots is not None and job.held_slots - job.leaving_slots > job.max_slots:
            outcome.victims.extend(_victims_beyond(job, job.max_slots, victim_ids))
    return outcome


def _victims_beyond(job: Job, max_slots: int, victim_ids: set[str]) -> Iterator[Victim]:
    """Yield victims, the youngest allocations first, until the job holds at most `max_slots`.

    The job may keep more slots, because allocations that cannot be preempted are never chosen.
    Allocations that are stopping or in `victim_ids` count as stopped. Zero-slot allocations are
    ignored.
    """
    staying = [
        running
        for running in job.allocations
        if not running.leaving and running.allocation_id not in victim_ids and running.slots
    ]
    excess = sum(running.slots for running in staying) - max_slots
    for running in sorted(staying, key=lambda running: running.start, reverse=True):
        if excess <= 0:
            return
        if running.preemptible:
            yield Victim(
                running, f"job {job.group} may now use at most {count_text(max_slots, 'slot')}"
            )
            excess -= running.slots


def _wait_reasons(
    outcome: SchedulingResult, groups: Container[int] | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the experiment id and the reason of each job that still waits, in the order in which
    the scheduler serves the jobs.

    The reason is for the job's first pending request that the plan does not start. Yield nothing if
    no job waits.

    Args:
        groups: the experiment ids of the jobs to look at, None for all jobs.
    """
    started: dict[int, dict[str, int]] = defaultdict(dict)
    for start in outcome.starts:
        started[start.request.group][start.request.allocation_id] = start.request.slots
    for job in outcome.order:
        if groups is not None and job.group not in groups:
            continue
        started_slots = started.get(job.group, {})
        if sum(job.pending_slots.values()) > len(started_slots):
            request = _first_pending(job, started_slots)
            if request is not None:
                yield job.group, outcome.wait_reason(job, request, sum(started_slots.values()))


def _first_pending(job: Job, started: dict[str, int]) -> AllocationRequest | None:
    """Return the job's first request that is not started. Return None if all are started.

    Args:
        started: the slots of the started requests by allocation id.
    """
    return next((request for request in job.pending if request.allocation_id not in started), None)
