"""Routes of the job queue: list, describe, and change jobs one at a time or in batches."""

from typing import Annotated, Self

from fastapi import Path, Query, Response
from pydantic import Field, model_validator

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
from control_plane.queries.job_lookup import find_job
from control_plane.queries.pages import Page
from control_plane.usecases.job_changes import OPERATIONS, JobChange, change_job, change_jobs

OPERATIONS_MAX = 100

router = guarded_router("jobs")

JobName = Annotated[str, Path(min_length=1, max_length=100)]
Name = Annotated[str, Field(max_length=100)]
PoolName = Annotated[str | None, Query(min_length=1, max_length=100)]


class JobChangeBody(RequestBody):
    """The body of `PATCH /jobs/{job_id}`: exactly one of these."""

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

    def change(self) -> JobChange:
        """The change as the use case takes it."""
        return JobChange(**{name: getattr(self, name) for name in OPERATIONS})


class OperationBody(JobChangeBody):
    """One operation of a batch."""

    job_id: Annotated[str, Field(min_length=1, max_length=100)]


class BatchBody(RequestBody):
    """The body of `PATCH /jobs`: operations in the order in which they are carried out."""

    operations: Annotated[list[OperationBody], Field(min_length=1, max_length=OPERATIONS_MAX)]


class BatchAnswer(Answer):
    """The job of each operation, as it is after all of them."""

    items: list[JobView]


@router.get("/jobs")
@require_role(*USER_ROLES)
def list_jobs(
    services: ServicesParameter,
    page: PageParameters,
    resource_pool: PoolName = None,
    reverse: bool = False,
) -> Page[JobView]:
    """List the queue of one pool in its order, by default of the default compute pool."""
    shared = cluster_config(services).resource_manager
    name = resource_pool or shared.default_compute_resource_pool
    pools.get_pool(services, name)
    return jobs.list_jobs(services, name, page, reverse)


@router.get("/jobs/{job_id}")
@require_role(*USER_ROLES)
def describe(job_id: JobName, services: ServicesParameter) -> JobView:
    return jobs.describe_job(services, find_job(services, job_id))


@router.patch("/jobs/{job_id}", response_model=JobView)
@require_role(*USER_ROLES)
def change(
    job_id: JobName, body: JobChangeBody, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    answer = request.execute(
        services,
        lambda extra_writes: change_job(services, job_id, body.change(), request.by, extra_writes),
        lambda reply: jobs.describe_job(services, reply),
    )
    return answer_response(answer)


@router.patch("/jobs")
@require_role(*USER_ROLES)
def change_several(
    body: BatchBody, request: IdempotencyParameter, services: ServicesParameter
) -> BatchAnswer:
    """Carry out each operation once; those that fail do not keep the others from it."""
    changes = [(operation.job_id, operation.change()) for operation in body.operations]
    return BatchAnswer(items=jobs.describe_jobs(services, change_jobs(services, changes, request)))
