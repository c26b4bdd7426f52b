"""Messages to a pool, and what can be asked of one at a desk."""

from dataclasses import replace

from control_plane.actors.jobs import JobRow, job_sort, jobs_of, written_job
from control_plane.actors.pool_messages import (
    AgentJoined,
    PoolConfigured,
    PoolSettings,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.pool_state import agents_of, waiting_in
from control_plane.actors.slots import OPEN, AgentSlots, Availability
from control_plane.actors.step import RowSeen, Turn
from control_plane.actors.trial_messages import PreemptionRequested
from control_plane.actors.waiting import Group
from control_plane.scheduling.model import SchedulerRules
from tests.unit.actors.desk import Desk

POOL = "default"
PRIORITY = PoolSettings(SchedulerRules("priority"))
PREEMPTING = PoolSettings(SchedulerRules("priority", preemption=True))


def pool(*messages: object, settings: PoolSettings | None = None, **jobs: JobRow) -> Desk:
    """A pool with the rows of jobs, named like `job1`."""
    desk = Desk(f"pool#{POOL}")
    for name, row in jobs.items():
        write_job(desk, int(name.removeprefix("job")), row)
    desk.tell(PoolConfigured(POOL, settings), *messages)
    return desk


def write_job(desk: Desk, group: int, row: JobRow | None) -> None:
    """As the experiment does; None removes the row."""
    key = (jobs_of(POOL), job_sort(group))
    if row is None:
        del desk.rows[key]
    else:
        row = replace(row, submitted_ms=row.submitted_ms or group)
        desk.rows[key] = RowSeen(desk.row(*key).revision + 1, written_job(row))


def joined(
    agent: str, slots: int, epoch: int = 1, availability: Availability = OPEN, label: str = ""
) -> AgentJoined:
    return AgentJoined(agent, epoch, tuple(range(slots)), availability, label)


def requested(trial_id: int, group: int, slots: int = 1, epoch: int = 1) -> SlotsRequested:
    return SlotsRequested(trial_id, epoch, slots, ticket(trial_id, group), group)


def released(trial_id: int, group: int, *agents: str, epoch: int = 1) -> SlotsReleased:
    return SlotsReleased(trial_id, epoch, ticket(trial_id, group), agents, group)


def ticket(trial_id: int, group: int) -> str:
    """Its job was submitted at `group` ms, and it asked at once."""
    return f"{group:014d}.{trial_id:014d}.{trial_id:012d}"


def running(desk: Desk) -> list[int]:
    """The trials that have slots."""
    return sorted({int(name.split(".")[0]) for agent in agents(desk).values() for name in agent})


def agents(desk: Desk) -> dict[str, dict[str, tuple[int, ...]]]:
    """The slots that each allocation holds of each agent."""
    found = agents_of(Turn(desk.address, 0, desk)).items()
    return {name: slots.running for name, slots in found}


def slots_of(desk: Desk, agent: str) -> AgentSlots:
    found = agents_of(Turn(desk.address, 0, desk)).get(agent)
    assert found is not None
    return found


def group_of(desk: Desk, number: int) -> Group:
    return waiting_in(Turn(desk.address, 0, desk)).group(number)


def asked_to_leave(desk: Desk) -> list[str]:
    """Trials that the last messages preempted, in the order of asking."""
    return [send.to for send in desk.sent if isinstance(send.message, PreemptionRequested)]
