"""The handle of a job: an experiment in the queue of a pool."""

from __future__ import annotations

from typing import TypedDict

from detcloud.client.resource import Field, Resource, path_segment


class QueuePlace(TypedDict):
    """A place in the queue of a priority pool."""

    priority: int
    """The priority, 1 (first) to 99."""
    position: str
    """The position among jobs of the priority, as a decimal number of microseconds."""


class JobChange(TypedDict, total=False):
    """A change of a job. Exactly one field besides `job_id` and the revisions is present."""

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
    place: QueuePlace
    """The place to return to, in a priority pool."""
    revision: str
    """The `revision` that the job must have. The change is refused if somebody has changed the job
    since.
    """
    neighbour_revision: str
    """The `revision` that the job in `ahead_of` or `behind_of` must have."""


class Job(Resource):
    """An experiment that has slots or waits for slots.

    The fields are those of the cluster's latest answer to this handle. A method that changes the
    job also updates the fields.
    """

    job_id = Field[str]("The UUID; any unique beginning of the UUID names the job.")
    experiment_id = Field[int]("The id of the job's experiment.")
    type = Field[str]("The type: TYPE_EXPERIMENT, TYPE_COMMAND, TYPE_NOTEBOOK or TYPE_SHELL.")
    name = Field[str]("The name of the job's experiment.")
    user = Field[str]("The user who submitted the job.")
    resource_pool = Field[str]("The name of the pool with the job's queue.")
    preferred_pools = Field[list[str]](
        "The pools that the job may move between, in order; empty if the pool is fixed."
    )
    pool_moved_ms = Field[int | None](
        "The time of the last move to another pool, epoch milliseconds; None before a move."
    )
    pool_move_reason = Field[str](
        "The reason for the last move to another pool; empty before a move."
    )
    scheduler = Field[str]("The scheduler of the pool: fair_share, priority or round_robin.")
    state = Field[str](
        "The state: STATE_SCHEDULED if a trial of the job has slots, else STATE_QUEUED."
    )
    kind = Field[str]("The kind: experiment, command, notebook or shell.")
    condition = Field[str](
        "The word for the state as the page and the command line show it, such as queued."
    )
    jobs_ahead = Field[int | None](
        "The number of earlier jobs in a priority pool's queue; None in other pools."
    )
    priority = Field[int]("The priority, 1 to 99, where 1 is the most urgent.")
    weight = Field[float]("The weight of the job under the fair-share scheduler.")
    position = Field[str | None](
        "The position among jobs of equal priority, a decimal number; None in other pools."
    )
    revision = Field[str]("The revision of priority, weight and position.")
    requested_slots = Field[int](
        "The number of slots that running and waiting trials of the job request."
    )
    allocated_slots = Field[int]("The number of slots that the job's trials have.")
    is_preemptible = Field[bool]("Whether the scheduler may take slots back from the job.")
    submitted_ms = Field[int]("The time of the submission, in epoch milliseconds.")
    progress = Field[float | None]("The completed share of the search, 0 to 1; None if unknown.")
    metric = Field[str]("The name of the searcher metric.")
    smaller_is_better = Field[bool]("Whether a smaller value of the metric is better.")
    best_metric = Field[float | None]("The best value of the metric; None before a validation.")
    waits = Field[str]("The reason for the wait; empty if no trial of the job waits.")
    waits_since_ms = Field[int | None](
        "The begin of the wait for slots, in epoch milliseconds; None without a wait."
    )
    expected_start_ms = Field[int | None](
        "The expected start of a waiting trial, in epoch milliseconds; None if unknown."
    )

    def __repr__(self) -> str:
        return f"Job({self.job_id!r})"

    def set_priority(self, priority: int) -> None:
        """Change the priority in a priority pool.

        Among jobs of equal priority, the position is by time of submission, even after a move.

        Args:
            priority: 1 (first) to 99.
        """
        self.change({"priority": priority})

    def set_weight(self, weight: float) -> None:
        """Change the job's share of a fair-share pool."""
        self.change({"weight": weight})

    def move_to(self, resource_pool: str) -> None:
        """Move the job to another pool, and update this handle.

        Running trials store a checkpoint, stop, and wait for slots of the new pool.

        Args:
            resource_pool: the name of the pool.
        """
        self.change({"resource_pool": resource_pool})

    def move_ahead_of(self, job: Job | str) -> None:
        """Move the job directly before another job of the pool, with that job's priority.

        Unless the caller is an admin, both jobs must be the caller's own.

        Args:
            job: the other job, or its UUID.
        """
        self.change({"ahead_of": job.job_id if isinstance(job, Job) else job})

    def move_behind(self, job: Job | str) -> None:
        """Move the job directly behind another job of the pool, with that job's priority.

        Unless the caller is an admin, both jobs must be the caller's own.

        Args:
            job: the other job, or its UUID.
        """
        self.change({"behind_of": job.job_id if isinstance(job, Job) else job})

    def change(self, change: JobChange) -> None:
        """Apply a change without `job_id` to this job, and update this handle."""
        self.data = self._client.patch(job_path(self.job_id), change)


def job_path(job_id: str) -> str:
    """Return the job's path below /api/v1. Raises DetcloudError for an impossible id."""
    return f"/jobs/{path_segment(job_id)}"
