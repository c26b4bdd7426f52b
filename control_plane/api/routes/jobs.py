"""The job queue: listed, and changed one job at a time or in batches."""

from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import Field

from control_plane.api.bodies import Body, RequestBody
from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.idempotency import AskedOnce
from control_plane.api.job_changes import Change, Operation, changed, changed_all
from control_plane.api.job_lookup import job_of
from control_plane.api.pages import Page, PageParameters
from control_plane.api.pool_store import cluster_config
from control_plane.api.services import Given
from control_plane.api.views import pool as pools
from control_plane.api.views.job import JobView, job, jobs, several

OPERATIONS_MAX = 100

router = guarded_router("jobs")

Named = Annotated[str, Path(min_length=1, max_length=100)]
PoolName = Annotated[str | None, Query(min_length=1, max_length=100)]


class Batch(RequestBody):
    """The body of `PATCH /jobs`: operations in the order in which they are carried out."""

    operations: Annotated[list[Operation], Field(min_length=1, max_length=OPERATIONS_MAX)]


class Changed(Body):
    """The job of each operation, as all of them left it."""

    items: list[JobView]


@router.get("/jobs")
@needs(*PEOPLE)
def list_jobs(
    services: Given, asked: PageParameters, resource_pool: PoolName = None, reverse: bool = False
) -> Page[JobView]:
    """The queue of one pool in its order, by default of the default compute pool."""
    shared = cluster_config(services).resource_manager
    name = resource_pool or shared.default_compute_resource_pool
    pools.existing(services, name)
    return jobs(services, name, asked, reverse)


@router.get("/jobs/{job_id}")
@needs(*PEOPLE)
def describe(job_id: Named, services: Given) -> JobView:
    return job(services, job_of(services, job_id))


@router.patch("/jobs/{job_id}", response_model=JobView)
@needs(*PEOPLE)
def change(job_id: Named, asked: Change, once: AskedOnce, services: Given) -> Response:
    return once.carried_out(
        services,
        lambda beside: changed(services, job_id, asked, once.by, beside),
        lambda reply: job(services, reply),
    )


@router.patch("/jobs")
@needs(*PEOPLE)
def change_several(asked: Batch, once: AskedOnce, services: Given) -> Changed:
    """Each operation is carried out once, those that fail do not keep the others from it."""
    return Changed(items=several(services, changed_all(services, asked.operations, once)))
