"""The handle of a job: an experiment in the queue of a pool."""

from __future__ import annotations

from typing import TypedDict

from detcloud.client.resource import Field, Resource, path_segment


class JobChange(TypedDict, total=False):
    """A change of a job. Exactly one field besides `job_id` is present."""

    job_id: str
    """The job's UUID, a unique prefix of the UUID, or the experiment's id."""
    priority: int
    """1 (first) to 99, in a priority pool."""
    weight: float
    """The share in a fair-share pool."""
    resource_pool: str
    """The pool to move to."""
    ahead_of: str
    """The job of the same pool to move ahead of, named like `job_id`."""
    behind_of: str
    """The job of the same pool to move behind, named like `job_id`."""


class Job(Resource):
    """An experiment that has slots or waits for slots.

    The fields are those of the cluster's latest answer. A method that changes the job also updates
    the fields.
    """

    job_id = Field[str]("The UUID; any unique beginning of it is accepted.")
    experiment_id = Field[int]("The experiment.")
    type = Field[str]("TYPE_EXPERIMENT, TYPE_COMMAND, TYPE_NOTEBOOK or TYPE_SHELL.")
    name = Field[str]("What the experiment is called.")
    user = Field[str]("Who submitted it.")
    resource_pool = Field[str]("The pool in whose queue it is.")
    preferred_pools = Field[list[str]]("Pools it may move between, in order; empty for one alone.")
    pool_moved_ms = Field[int | None]("When it last went on to the next of them; None: never.")
    pool_move_reason = Field[str]("Why it did.")
    scheduler = Field[str]("How that pool decides: fair_share, priority or round_robin.")
    state = Field[str]("STATE_SCHEDULED when a trial of it has slots, else STATE_QUEUED.")
    jobs_ahead = Field[int | None]("How many jobs are before it in a priority pool, else None.")
    priority = Field[int]("1 to 99, 1 being the first.")
    weight = Field[float]("Its share under fair share.")
    requested_slots = Field[int]("The slots of all its trials that run or wait.")
    allocated_slots = Field[int]("The slots that they have.")
    is_preemptible = Field[bool]("Whether the scheduler may take its slots back.")
    submitted_ms = Field[int]("When it was submitted, epoch milliseconds.")
    progress = Field[float | None]("From 0 to 1.")
    waits = Field[str]("Why it waits, empty if nothing of it does.")
    waits_since_ms = Field[int | None]("Since when it has waited for slots; None if it does not.")
    expected_start_ms = Field[int | None]("When what waits may start, None if that is not known.")

    def __repr__(self) -> str:
        return f"Job({self.job_id!r})"

    def set_priority(self, priority: int) -> None:
        """Change the priority in a priority pool: 1 (first) to 99.

        Among jobs of equal priority, the position is by time of submission, even after a move.
        """
        self.change({"priority": priority})

    def set_weight(self, weight: float) -> None:
        """Change the job's share of a fair-share pool."""
        self.change({"weight": weight})

    def move_to(self, resource_pool: str) -> None:
        """Move the job to another pool, and update this handle.

        Running trials store a checkpoint, stop, and wait for slots of the new pool.
        """
        self.change({"resource_pool": resource_pool})

    def move_ahead_of(self, job: Job | str) -> None:
        """Move the job directly before another job of the pool, with that job's priority.

        Unless the caller is an admin, both jobs must be the caller's own.
        """
        self.change({"ahead_of": job.job_id if isinstance(job, Job) else job})

    def move_behind(self, job: Job | str) -> None:
        """Move the job directly behind another job of the pool, with that job's priority.

        Unless the caller is an admin, both jobs must be the caller's own.
        """
        self.change({"behind_of": job.job_id if isinstance(job, Job) else job})

    def change(self, change: JobChange) -> None:
        """Apply a change without `job_id` to this job, and update this handle."""
        self.data = self._client.patch(job_path(self.job_id), change)


def job_path(job_id: str) -> str:
    """Return the job's path below /api/v1. Raises DetcloudError for an impossible id."""
    return f"/jobs/{path_segment(job_id)}"
