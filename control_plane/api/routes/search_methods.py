"""The search method of a custom search: told what happens, and heard what is to be done.

A call that waits for events costs no thread where the host has a waiting room; elsewhere it is
answered at once, and the caller comes again.
"""

import time
import uuid
from typing import Annotated, Any

from fastapi import Path, Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import OperationsPosted
from control_plane.api.bodies import Body, RequestBody
from control_plane.api.errors import invalid
from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.idempotency import AskedOnce
from control_plane.api.services import Given
from control_plane.api.views import search_events
from control_plane.api.views.search_events import SearchEvents
from control_plane.searchers.posted import Posted, PostRefused, asked

WAIT_SECONDS_MAX = 60
POST_BYTES_MAX = 512 * 1024

router = guarded_router("search methods")

ExperimentId = Annotated[int, Path(ge=1, le=10**12 - 1)]
EventId = Annotated[int, Field(ge=0, le=2**53)]


class Post(RequestBody):
    """The body of a post of operations; docs/custom-search.md says what each may be."""

    post: Annotated[int, Field(ge=1, le=2**53)]
    acknowledged: EventId
    operations: list[Any] = []


class Taken(Body):
    """How far the method and the search understand each other."""

    post: int
    acknowledged: int
    newest: int


@router.get(
    "/experiments/{experiment_id}/searcher-events",
    response_model=SearchEvents,
    response_model_exclude_none=True,
)
@needs(*PEOPLE)
async def searcher_events(
    experiment_id: ExperimentId,
    services: Given,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    wait_seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX)] = 0.0,
) -> SearchEvents:
    """What is unacknowledged and newer than `after`; waits for some while the search goes on."""
    until = time.monotonic() + wait_seconds
    await run_in_threadpool(search_events.heard, services, experiment_id)
    room = services.waiting
    if room is None:
        return await run_in_threadpool(search_events.after, services, experiment_id, after)
    # A name of its own: a later call of the same experiment ends no other.
    with room.call(f"search {uuid.uuid4()}") as call:
        room.watch(call, (addresses.experiment(experiment_id),))
        while True:
            found = await run_in_threadpool(search_events.after, services, experiment_id, after)
            left = until - time.monotonic()
            if found.events or not found.active or call.superseded or left <= 0:
                return found
            await call.wait(left)


@router.post("/experiments/{experiment_id}/searcher-operations", response_model=Taken)
@needs(*PEOPLE, body_bytes_max=POST_BYTES_MAX)
def searcher_operations(
    experiment_id: ExperimentId, posted: Post, once: AskedOnce, services: Given
) -> Response:
    """All of it or nothing. The last post may be repeated under any key: it changes nothing."""
    message = OperationsPosted(_checked(posted))
    address = addresses.experiment(experiment_id)
    search_events.heard(services, experiment_id)
    return once.carried_out(
        services,
        lambda beside: services.engine.command(address, message, by=once.by, beside=beside),
        lambda reply: Taken(**reply),
    )


def _checked(posted: Post) -> Posted:
    try:
        operations = asked(posted.operations)
    except PostRefused as error:
        raise invalid("", str(error)) from None
    return Posted(posted.post, posted.acknowledged, operations)
