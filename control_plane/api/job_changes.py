"""Changes of jobs: priority, weight, pool and place in the queue.

A move reads the rows of the pool's jobs, which their experiments write, and gives the job a
position between two of them. Moves of one pool take turns: each passes on the pool's row of moves
in its commit, and is worked out again if another was faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Self

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import PoolChanged, SettingsChanged
from control_plane.actors.jobs import JobRow, jobs_of, read_job
from control_plane.actors.step import Refused
from control_plane.api.errors import ApiError, Code
from control_plane.api.idempotency import Beside, Once
from control_plane.api.job_lookup import job_of
from control_plane.api.placement import check_fits, destination, needs_of
from control_plane.api.services import Services
from control_plane.api.views import experiment as experiments
from control_plane.api.views import pool as pools
from control_plane.api.views.rows import all_rows

OPERATIONS = ("priority", "weight", "resource_pool", "ahead_of", "behind_of")
MOVES = "job-moves"

Name = Annotated[str, Field(max_length=100)]


class Change(BaseModel):
    """The body of `PATCH /jobs/{job_id}`: exactly one of these."""

    model_config = ConfigDict(extra="forbid", strict=True)

    priority: int | None = None
    weight: float | None = None
    resource_pool: Name | None = None
    ahead_of: Name | None = None
    behind_of: Name | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(getattr(self, name) is not None for name in OPERATIONS) != 1:
            raise ValueError(f"exactly one of {', '.join(OPERATIONS)} is required")
        return self


class Operation(Change):
    """One operation of a batch."""

    job_id: Annotated[str, Field(min_length=1, max_length=100)]
