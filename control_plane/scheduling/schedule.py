"""A snapshot of a pool in, a plan out, by the scheduler that the pool's rules name."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from sys import maxsize

from control_plane.scheduling import fair_share, priority, round_robin
from control_plane.scheduling.fitting import Fleet
from control_plane.scheduling.model import (
    Capacity,
    Job,
    Request,
    SchedulePlan,
    SchedulerRules,
    Start,
    Victim,
)
from control_plane.scheduling.outcome import Outcome
from control_plane.scheduling.sizes import counted


def schedule(
    jobs: Iterable[Job], agents: Iterable[Capacity], rules: SchedulerRules, starts_max: int
) -> SchedulePlan:
    """What to start, at most `starts_max`, and whom to ask to go.

    Labels divide the pool: jobs of one label see only agents of the same, and are scheduled as if
    there were nothing else. The order of jobs, agents and holdings makes no difference; pending
    requests come by ticket.
    """
    starts: list[Start] = []
    victims: list[Victim] = []
    waits = ""
    for of_label, fleet in _labels(jobs, agents, rules):
        outcome = _plan(of_label, fleet, rules, starts_max - len(starts))
        starts += outcome.starts
        victims += outcome.victims
        waits = waits or next(_waiting(outcome), (0, ""))[1]
    return SchedulePlan(tuple(starts), tuple(victims), waits)


def explained(
    jobs: Iterable[Job], agents: Iterable[Capacity], rules: SchedulerRules
) -> dict[int, str]:
    """Why each job waits that waits on after a plan: "needs 8 slots, 6 free; behind job 12"."""
    plans = (_plan(of, fleet, rules, maxsize) for of, fleet in _labels(jobs, agents, rules))
    return dict(reason for outcome in plans for reason in _waiting(outcome))


def _labels(
    jobs: Iterable[Job], agents: Iterable[Capacity], rules: SchedulerRules
) -> Iterator[tuple[Sequence[Job], Fleet]]:
    """The jobs of each label and the agents for them."""
    jobs_of: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        jobs_of[job.label].append(job)
    agents_of: dict[str, list[Capacity]] = defaultdict(list)
    for agent in agents:
        agents_of[agent.label].append(agent)
    for label in sorted(jobs_of):
        yield jobs_of[label], Fleet(agents_of[label], rules.fitting, rules.heterogeneous)


def _plan(jobs: Sequence[Job], fleet: Fleet, rules: SchedulerRules, starts_max: int) -> Outcome:
    match rules.kind:
        case "fair_share":
            return fair_share.plan(jobs, fleet, starts_max)
        case "priority":
            return _limited(jobs, priority.plan(jobs, fleet, rules.preemption, starts_max))
        case "round_robin":
            return _limited(jobs, round_robin.plan(jobs, fleet, starts_max))


def _limited(jobs: Iterable[Job], outcome: Outcome) -> Outcome:
    """Takes back what jobs have beyond their max_slots, the youngest first. Fair shares never
    exceed it.
    """
    going = {victim.holding.allocation for victim in outcome.victims}
    for job in jobs:
        if job.max_slots is not None and job.held_slots - job.leaving_slots > job.max_slots:
            outcome.victims.extend(_beyond(job, job.max_slots, going))
    return outcome


def _beyond(job: Job, max_slots: int, going: set[str]) -> Iterator[Victim]:
    staying = [
        one for one in job.holdings if not one.leaving and one.allocation not in going and one.slots
    ]
    excess = sum(one.slots for one in staying) - max_slots
    for holding in sorted(staying, key=lambda one: one.start, reverse=True):
        if excess <= 0:
            return
        if holding.preemptible:
            yield Victim(holding, f"job {job.group} may have {counted(max_slots)} at most now")
            excess -= holding.slots


def _waiting(outcome: Outcome) -> Iterator[tuple[int, str]]:
    """The jobs that wait on, as they are served, and why."""
    started: dict[int, dict[str, int]] = defaultdict(dict)
    for start in outcome.starts:
        started[start.request.group][start.request.allocation] = start.request.slots
    for job in outcome.order:
        begun = started.get(job.group, {})
        if sum(job.pending_slots.values()) > len(begun):
            request = _first_left(job, begun)
            if request is not None:
                yield job.group, outcome.reason(job, request, sum(begun.values()))


def _first_left(job: Job, started: dict[str, int]) -> Request | None:
    return next((one for one in job.pending if one.allocation not in started), None)
