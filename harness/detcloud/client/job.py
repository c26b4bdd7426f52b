"""A handle on one job of a queue: an experiment as the scheduler sees it."""

from __future__ import annotations

from typing import TypedDict

from detcloud.client.resource import Field, Resource, path_segment


class JobChange(TypedDict, total=False):
    """One change of one job, `job_id` being a UUID, a beginning of one or an experiment's id.

    Exactly one of the other fields says what to change.
    """

    job_id: str
    priority: int
    weight: float
    resource_pool: str
    ahead_of: str
    behind_of: str


class Job(Resource):
    """An experiment that has slots or waits for some."""

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
        """Changes its priority; its place among equals is again that of its submission."""
        self.change({"priority": priority})

    def set_weight(self, weight: float) -> None:
        """Changes its share in a fair-share pool."""
        self.change({"weight": weight})

    def move_to(self, resource_pool: str) -> None:
        """Moves it to another pool's queue; what runs saves its work and asks again there."""
        self.change({"resource_pool": resource_pool})

    def move_ahead_of(self, job: Job | str) -> None:
        """Puts it right before another job of its pool, taking its priority."""
        self.change({"ahead_of": job.job_id if isinstance(job, Job) else job})

    def move_behind(self, job: Job | str) -> None:
        """Puts it right behind another job of its pool, taking its priority."""
        self.change({"behind_of": job.job_id if isinstance(job, Job) else job})

    def change(self, change: JobChange) -> None:
        """Carries out one change, which needs no `job_id`."""
        self.data = self._client.patch(job_path(self.job_id), change)


def job_path(job_id: str) -> str:
    """The job's path below the API's base path."""
    return f"/jobs/{path_segment(job_id)}"
