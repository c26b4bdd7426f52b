"""A job's settings: one row for each experiment in the partition of its pool.

The experiment alone writes it: when it begins, when its settings change, when it moves to another
pool or ends. The pool reads it, and hears of each change with a message.
"""

import json
from dataclasses import asdict, dataclass
from decimal import Decimal

POSITIONS_PER_MS = 1_000


@dataclass(frozen=True, slots=True)
class JobRow:
    """How a scheduler treats an experiment.

    `priority`: None for the pool's default. `max_slots`: None for any number. `position`: a decimal
    number in us, None for the time of submission. `label`: of the agents that it may run on.
    `single_agent`: no trial of it is spread over several agents. `deadline_ms`: when it is to be
    done, None for any time.
    """

    submitted_ms: int = 0
    weight: float = 1.0
    priority: int | None = None
    max_slots: int | None = None
    position: str | None = None
    label: str = ""
    single_agent: bool = False
    deadline_ms: int | None = None

    def at(self) -> Decimal:
        """Its position."""
        if self.position is None:
            return Decimal(self.submitted_ms * POSITIONS_PER_MS)
        return Decimal(self.position)


def jobs_of(pool: str) -> str:
    """The partition of a pool's jobs, one row for each."""
    return f"jobs#{pool}"


def job_sort(experiment_id: int) -> str:
    """The sort key of an experiment's row there."""
    return f"{experiment_id:012d}"


def written_job(row: JobRow) -> bytes:
    """The row's body."""
    return json.dumps(asdict(row)).encode()


def read_job(body: bytes) -> JobRow:
    """The way back. Fields that are missing have their defaults, others are left out."""
    known = JobRow.__dataclass_fields__
    return JobRow(**{name: value for name, value in json.loads(body).items() if name in known})
