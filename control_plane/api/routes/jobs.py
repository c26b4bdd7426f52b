"""Routes of the job queue: list, describe, and change jobs one at a time or in batches."""

from decimal import Decimal
from functools import partial
from typing import Annotated, Self

from fastapi import Path, Query, Response
from pydantic import Field, model_validator

from control_plane.access.ownership import FindOwned
from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import job as jobs
from control_plane.queries import pool as pools
from control_plane.queries.answer import Answer
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.queries.job import JobView
from control_plane.queries.job_lookup import find_job, find_owned_jobs
from control_plane.queries.pages import Page
from control_plane.scheduling.queue_positions import PRIORITIES
from control_plane.text_forms import text_form
from control_plane.usecases.job_changes import (
    OPERATIONS,
    JobChange,
    QueuePlace,
    change_job,
    change_jobs,
)

OPERATIONS_MAX = 100

router = guarded_router("jobs")

JobName = Annotated[str, Path(min_length=1, max_length=100)]
Name = Annotated[str, Field(max_length=100)]
PoolName = Annotated[str | None, Query(min_length=1, max_length=100)]
Revision = Annotated[str, Field(max_length=100)]
Position = Annotated[
    str,
    Field(
        pattern=text_form(
            r"^-?[0-9]{1,40}(?:\.[0-9]{1,300})?$", "a decimal number, as in `position` of a job"
        )
    ),
]


class PlaceBody(RequestBody):
    """A place in a queue, as `priority` and `position` of a job."""

    priority: Annotated[int, Field(ge=PRIORITIES.start, lt=PRIORITIES.stop)]
    position: Position


class JobChangeBody(RequestBody):
    """The body of `PATCH /jobs/{job_id}`. Exactly one change must be set.

    `revision` and `neighbour_revision` are conditions: the revisions that the job, and the job in
    `ahead_of` or `behind_of`, must have.
    """

    priority: int | None = None
    weight: float | None = None
    resource_pool: Name | None = None
    ahead_of: Name | None = None
    behind_of: Name | None = None
    place: PlaceBody | None = None
    revision: Revision | None = None
    neighbour_revision: Revision | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(getattr(self, name) is not None for name in OPERATIONS) != 1:
            raise ValueError(f"exactly one of {', '.join(OPERATIONS)} is required")
        if self.revision is not None and self.resource_pool is not None:
            raise ValueError("a change of resource_pool has no revision; leave out revision")
        if self.neighbour_revision is not None and not self.anchors:
            raise ValueError("neighbour_revision needs ahead_of or behind_of")
        return self

    def change(self) -> JobChange:
        """Return the change in the form of the use case."""
        place = None
        if self.place is not None:
            place = QueuePlace(self.place.priority, Decimal(self.place.position))
        return JobChange(
            priority=self.priority,
            weight=self.weight,
            resource_pool=self.resource_pool,
            ahead_of=self.ahead_of,
            behind_of=self.behind_of,
            place=place,
            revision=self.revision,
            neighbour_revision=self.neighbour_revision,
        )

    @property
    def anchors(self) -> list[str]:
        """The name of the job in `ahead_of` or `behind_of`, or [] for a change that is no move."""
        return [name for name in (self.ahead_of, self.behind_of) if name is not None]


class OperationBody(JobChangeBody):
    """An operation of a batch: a change of the job `job_id`. One other field must be set."""

    job_id: Annotated[str, Field(min_length=1, max_length=100)]


class BatchBody(RequestBody):
    """The body of `PATCH /jobs`. The operations are executed in order."""

    operations: Annotated[list[OperationBody], Field(min_length=1, max_length=OPERATIONS_MAX)]


def _jobs_of_change(job_id: JobName, body: JobChangeBody, services: ServicesParameter) -> FindOwned:
    """Return a function that finds the ownership of the job, and of the neighbour of a move.

    A move changes the order of both jobs. The function skips names that match no job or several.
    """
    return partial(find_owned_jobs, services, [job_id, *body.anchors])


def _jobs_of_batch(body: BatchBody, services: ServicesParameter) -> FindOwned:
    """Return a function that finds the ownership of the jobs and neighbours of all operations.

    A job of another user refuses the whole batch. The function skips names that match no job or
    several.
    """
    names = [name for one in body.operations for name in (one.job_id, *one.anchors)]
    return partial(find_owned_jobs, services, names)


class BatchAnswer(Answer):
    """The job of each operation, in the state after all operations."""

    items: list[JobView]


@router.get("/jobs")
@require_role(*USER_ROLES)
def list_jobs(
    services: ServicesParameter,
    page: PageParameters,
    resource_pool: PoolName = None,
    reverse: bool = False,
) -> Page[JobView]:
    """List the jobs in the queue of a pool, in the order of the queue or with `reverse` backwards.

    Paused jobs are not in the queue. A page may be short although `next_cursor` is set. The pool
    defaults to the default compute pool. Errors: `not_found` for an unknown pool. `invalid` for a
    cursor of another list. `unavailable` if the pool changes too fast to be read.
    """
    shared = cluster_config(services).resource_manager
    name = resource_pool or shared.default_compute_resource_pool
    pools.get_pool(services, name)
    return jobs.list_jobs(services, name, page, reverse)


@router.get("/jobs/{job_id}")
@require_role(*USER_ROLES)
def describe(job_id: JobName, services: ServicesParameter) -> JobView:
    return jobs.describe_job(services, find_job(services, job_id))


@router.patch("/jobs/{job_id}", response_model=JobView)
@require_role(*USER_ROLES, changes=_jobs_of_change)
def change(
    job_id: JobName, body: JobChangeBody, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Change a job's priority, weight, pool or place in the queue, and return the job.

    `job_id` is the job's UUID, a prefix of the UUID, or the id of the experiment. A move also gives
    the job the priority of the neighbour, and changes nothing if the neighbour is in another pool.
    Another priority undoes an earlier move. Errors: `not_found` if the job or the neighbour of a
    move does not exist or has ended. `forbidden` if the job or the neighbour belongs to another
    user. `invalid` for a wrong value or an ambiguous prefix, if the pool's scheduler does not
    support the change, or if the new pool cannot run the job. `conflict` if the experiment refuses
    the change, or if a revision is given and the job or the neighbour has another revision.
    `unavailable` if the queue changes too fast.
    """
    answer = request.execute(
        services,
        lambda extra_writes: change_job(services, job_id, body.change(), request.by, extra_writes),
        lambda reply: jobs.describe_job(services, reply),
    )
    return answer_response(answer)


@router.patch("/jobs")
@require_role(*USER_ROLES, changes=_jobs_of_batch)
def change_several(
    body: BatchBody, request: IdempotencyParameter, services: ServicesParameter
) -> BatchAnswer:
    """Execute each operation once per idempotency key, in order, and return the changed jobs.

    All operations are tried, even if earlier ones fail. A change of priority keeps the position of
    an earlier move. Errors: `forbidden` for a job of another user, before any operation. If
    operations fail, a single error lists all failures, and the other operations took effect. The
    code is `unavailable` if a failure is, otherwise the failures' common code, or `invalid`.
    """
    changes = [(operation.job_id, operation.change()) for operation in body.operations]
    return BatchAnswer(items=jobs.describe_jobs(services, change_jobs(services, changes, request)))
