"""Rows with the jobs of a pool: for each experiment in it, how schedulers are to treat it.

The experiment alone writes its row: when it begins, when its settings change, when it moves to
another pool or ends. The pool reads it, and learns of each change from a message.
"""

import json
from dataclasses import asdict, dataclass
from decimal import Decimal

POSITIONS_PER_MS = 1_000
POOLS = "pools"
"""The partition with a row of each pool."""
_OF_FEW_JOBS = frozenset({"patience_ms", "stay", "rounds", "waits_since_ms", "preemptible"})


@dataclass(frozen=True, slots=True)
class JobRow:
    """The settings by which a scheduler treats an experiment.

    `priority`: None for the pool's default. `max_slots`: None for any number. `position`: a decimal
    number in us, None for the time of submission. `label`: of the agents that it may run on.
    `single_agent`: none of its trials is spread over several agents. `deadline_ms`: when it has to
    be done, None for any time. `preemptible`: its allocations may be asked to stop for others.

    Of a job that may leave for another pool: `patience_ms`, how long it waits here first, None for
    ever; `stay`, the number of this stay; `rounds`, how often it has been in all its pools;
    `waits_since_ms`, since when it has waited in all of them together, None for this stay alone.
    """

    submitted_ms: int = 0
    weight: float = 1.0
    priority: int | None = None
    max_slots: int | None = None
    position: str | None = None
    label: str = ""
    single_agent: bool = False
    deadline_ms: int | None = None
    patience_ms: int | None = None
    stay: int = 0
    rounds: int = 0
    waits_since_ms: int | None = None
    preemptible: bool = True

    def queue_position(self) -> Decimal:
        """The job's place in the queue, smaller is earlier: `position`, or the submission time."""
        if self.position is None:
            return Decimal(self.submitted_ms * POSITIONS_PER_MS)
        return Decimal(self.position)


def jobs_partition(pool: str) -> str:
    """The partition of a pool's job rows."""
    return f"jobs#{pool}"


def job_sort_key(experiment_id: int) -> str:
    """The sort key of an experiment's job row."""
    return f"{experiment_id:012d}"


def encode_job(row: JobRow) -> bytes:
    """The body of a job row. Most jobs are preemptible and have one pool: what concerns others is
    left out there.
    """
    default = JobRow()
    fields = asdict(row).items()
    return json.dumps(
        {
            name: value
            for name, value in fields
            if name not in _OF_FEW_JOBS or value != getattr(default, name)
        }
    ).encode()


def decode_job(body: bytes) -> JobRow:
    """Decode a job row; missing fields get their defaults, unknown ones are ignored."""
    known = JobRow.__dataclass_fields__
    return JobRow(**{name: value for name, value in json.loads(body).items() if name in known})
