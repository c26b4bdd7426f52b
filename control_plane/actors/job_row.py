"""Job rows: for each experiment in a pool, the settings that the scheduler reads.

Only the experiment writes its row: at its start, after a change of settings, after a move to
another pool, and at its end. The pool reads the row. A message notifies the pool of each change.
"""

from dataclasses import dataclass
from decimal import Decimal

from control_plane.actors.content_revision import content_revision
from control_plane.rows import pool_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.scheduling.agent_needs import NO_NEEDS, AgentNeeds

POSITIONS_PER_MS = 1_000
"""Positions in the queue are in microseconds."""
POOLS = pool_rows.POOL.partition
"""The partition with one row for each pool."""
_OMITTED_DEFAULTS = frozenset(
    {
        "patience_ms",
        "stay",
        "rounds",
        "waits_since_ms",
        "preemptible",
        "slot_sharers",
        "slot_type",
        "slot_memory",
        "agent_user",
    }
)
"""The fields that a stored job row leaves out if they have their defaults, as most jobs do."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """The settings of an experiment for the scheduler of a pool."""

    submitted_ms: int = 0
    """The time of submission, in epoch ms."""
    weight: float = 1.0
    """The job's weight in a fair share."""
    priority: int | None = None
    """The priority. None: the pool's default."""
    max_slots: int | None = None
    """The most slots that the job may hold. None: no limit."""
    position: str | None = None
    """The position in the queue in us, as a decimal number. None: the time of submission."""
    label: str = ""
    """The label of the agents that may run the job. "": agents without a label."""
    single_agent: bool = False
    """Whether every trial must run on a single agent."""
    deadline_ms: int | None = None
    """The time by which the job is to have ended, in epoch ms. None: no deadline."""
    patience_ms: int | None = None
    """How long the job waits in this pool before it moves to its next preferred pool. None:
    forever.
    """
    stay: int = 0
    """The number of the job's stay in this pool, among its stays in all preferred pools."""
    rounds: int = 0
    """How often the job has been in each of its preferred pools since it last ran."""
    waits_since_ms: int | None = None
    """The time since which the job has waited in all its preferred pools together, in epoch ms.
    None: only this stay counts.
    """
    preemptible: bool = True
    """Whether the scheduler may preempt the job's allocations for other jobs."""
    slot_sharers: int = 1
    """The most trials of the job that share a slot. 1: each trial has its own slots."""
    slot_type: str = ""
    """The type of the slots, or words of the devices' name. "": any device."""
    slot_memory: int = 0
    """The least memory of each device, in bytes."""
    agent_user: str = ""
    """The user of the machines that the trials run as, as `UID:GID`, at the submission. "": none.
    """

    @property
    def needs(self) -> AgentNeeds:
        """Return the needs that agents must meet to run the job."""
        if not (self.slot_type or self.slot_memory or self.agent_user):
            return NO_NEEDS
        return AgentNeeds(self.slot_type, self.slot_memory, self.agent_user)

    def queue_position(self) -> Decimal:
        """Return the job's position in the queue in us: `position`, or the time of submission.

        Smaller positions are earlier. Raises `decimal.InvalidOperation` if `position` is no decimal
        number, which the experiment's settings exclude.
        """
        if self.position is None:
            return Decimal(self.submitted_ms * POSITIONS_PER_MS)
        return Decimal(self.position)


def order_revision(weight: float, priority: int | None, position: Decimal) -> str:
    """Return the revision of the settings that decide the order of a job: weight, priority and
    position.

    Different settings have different revisions. A priority of None has a revision of its own.
    """
    return content_revision([float(weight), priority, f"{position:f}"])


def jobs_partition(pool: str) -> str:
    """Return the partition of a pool's job rows."""
    return pool_rows.JOB.partition_of(pool)


def job_sort_key(experiment_id: int) -> str:
    """Return the sort key of an experiment's job row."""
    return f"{experiment_id:012d}"


def encode_job(row: JobRow) -> bytes:
    """Encode a job row as JSON.

    Fields that few jobs set are left out if they have their defaults.
    """
    return _CODEC.encode(row)


def decode_job(body: bytes) -> JobRow:
    """Decode a job row. Missing fields get their defaults, and unknown fields are ignored.

    Raises:
        ValueError: the body is not JSON.
    """
    return _CODEC.decode(body)


_CODEC = JsonCodec(pool_rows.JOB, JobRow, omitted=_OMITTED_DEFAULTS)
