"""Messages to a pool, and functions that read the state of a pool in a harness."""

from dataclasses import replace

from control_plane.actors.job_row import JobRow, encode_job, job_sort_key, jobs_partition
from control_plane.actors.messages.pool import (
    AgentJoined,
    PoolConfigured,
    PoolSettings,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.messages.trial import PreemptionRequested
from control_plane.actors.pool.agent_slots import AgentSlots
from control_plane.actors.pool.groups import Group
from control_plane.actors.pool.state import agents_of, job_queue_of
from control_plane.actors.records import OPEN, Availability
from control_plane.actors.step import ObservedRow, StepContext
from control_plane.scheduling.model import SchedulerRules
from tests.unit.actors.actor_harness import ActorHarness

POOL = "default"
PRIORITY = PoolSettings(SchedulerRules("priority"))
PREEMPTING = PoolSettings(SchedulerRules("priority", preemption=True))


def pool(*messages: object, settings: PoolSettings | None = None, **jobs: JobRow) -> ActorHarness:
    """Create a configured pool with job rows. The keyword `job1` is the row of job 1."""
    actor = ActorHarness(f"pool#{POOL}")
    for name, row in jobs.items():
        write_job(actor, int(name.removeprefix("job")), row)
    actor.deliver(PoolConfigured(POOL, settings), *messages)
    return actor


def write_job(actor: ActorHarness, group: int, row: JobRow | None) -> None:
    """Write a job's row as an experiment does. None removes the row."""
    key = (jobs_partition(POOL), job_sort_key(group))
    if row is None:
        del actor.rows[key]
    else:
        row = replace(row, submitted_ms=row.submitted_ms or group)
        actor.rows[key] = ObservedRow(actor.row(*key).revision + 1, encode_job(row))


def agent_joined(
    agent: str, slots: int, epoch: int = 1, availability: Availability = OPEN, label: str = ""
) -> AgentJoined:
    return AgentJoined(agent, epoch, tuple(range(slots)), availability, label)


def slots_requested(trial_id: int, group: int, slots: int = 1, epoch: int = 1) -> SlotsRequested:
    return SlotsRequested(trial_id, epoch, slots, ticket(trial_id, group), group)


def slots_released(trial_id: int, group: int, *agents: str, epoch: int = 1) -> SlotsReleased:
    return SlotsReleased(trial_id, epoch, ticket(trial_id, group), agents, group)


def ticket(trial_id: int, group: int) -> str:
    """Return the ticket of a job that was submitted at `group` ms."""
    return f"{group:014d}.{trial_id:014d}.{trial_id:012d}"


def running(actor: ActorHarness) -> list[int]:
    """Return the ids of the trials that hold slots."""
    return sorted({int(name.split(".")[0]) for agent in agents(actor).values() for name in agent})


def agents(actor: ActorHarness) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the ids of the slots that each allocation holds on each agent."""
    known = agents_of(StepContext(actor.address, 0, actor)).items()
    return {name: slots.slots_by_allocation for name, slots in known}


def slots_of(actor: ActorHarness, agent: str) -> AgentSlots:
    state = agents_of(StepContext(actor.address, 0, actor)).get(agent)
    assert state is not None
    return state


def group_of(actor: ActorHarness, number: int) -> Group:
    return job_queue_of(StepContext(actor.address, 0, actor)).group(number)


def preempted_trials(actor: ActorHarness) -> list[str]:
    """Return the addresses of the trials that the last messages preempted, in order."""
    return [send.to for send in actor.sent if isinstance(send.message, PreemptionRequested)]
