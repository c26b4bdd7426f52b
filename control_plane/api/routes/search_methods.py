"""Routes of the user's method of a custom search, which reads events and posts operations.

On a host with long polls, a call that waits for events occupies no thread. Other hosts answer each
call at once, and the method must call again.
"""

import time
import uuid
from typing import Annotated, Any

from fastapi import Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from control_plane.access.principals import USER_ROLES
from control_plane.actors import addresses
from control_plane.actors.messages.experiment import OperationsPosted
from control_plane.api.dependencies import ExperimentId, IdempotencyParameter, ServicesParameter
from control_plane.api.owned_objects import experiment_in_path
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.errors import invalid
from control_plane.queries.answer import Answer
from control_plane.queries.search_events import SearchEvents, list_events
from control_plane.searchers.posted_operations import (
    PostedOperations,
    PostRefused,
    parse_operations,
)
from control_plane.usecases.search_method_calls import record_method_call

WAIT_SECONDS_MAX = 60
POST_BYTES_MAX = 512 * 1024

router = guarded_router("search methods")

EventId = Annotated[int, Field(ge=0, le=2**53)]


class PostBody(RequestBody):
    """The body of a post of operations; docs/custom-search.md describes the operations.

    `post` is the number of the post, counted from 1. `acknowledged` is the number of the last event
    that the search method has processed.
    """

    post: Annotated[int, Field(ge=1, le=2**53)]
    acknowledged: EventId
    operations: list[Any] = []


class PostAnswer(Answer):
    """The numbers of the last accepted post, the last acknowledged event and the newest event."""

    post: int
    acknowledged: int
    newest: int


@router.get(
    "/experiments/{experiment_id}/searcher-events",
    response_model=SearchEvents,
    response_model_exclude_none=True,
)
@require_role(*USER_ROLES)
async def searcher_events(
    experiment_id: ExperimentId,
    caller: Caller,
    services: ServicesParameter,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    wait_seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX)] = 0.0,
) -> SearchEvents:
    """List the unacknowledged events of a custom search with numbers above `after`, at most 500.

    If no such event exists, wait for an event, at most `wait_seconds` and while the search accepts
    posts. Some clusters answer without waiting. The call of a user who may change the experiment is
    recorded as the search method's last call, at most every 30 seconds. Errors: `not_found` for an
    unknown experiment. `conflict` if the experiment has another kind of search.
    """
    deadline = time.monotonic() + wait_seconds
    await run_in_threadpool(record_method_call, services, experiment_id, caller)
    polls = services.long_polls
    if polls is None:
        return await run_in_threadpool(list_events, services, experiment_id, after)
    # A unique name, so that a later call for the same experiment does not end this call.
    with polls.open_poll(f"search {uuid.uuid4()}") as call:
        polls.watch_addresses(call, (addresses.experiment(experiment_id),))
        while True:
            answer = await run_in_threadpool(list_events, services, experiment_id, after)
            left = deadline - time.monotonic()
            if answer.events or not answer.active or call.superseded or left <= 0:
                return answer
            await call.wait(left)


@router.post("/experiments/{experiment_id}/searcher-operations", response_model=PostAnswer)
@require_role(*USER_ROLES, body_bytes_max=POST_BYTES_MAX, changes=experiment_in_path)
def searcher_operations(
    experiment_id: ExperimentId,
    body: PostBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Apply all operations of a post to a custom search, or none, and acknowledge events.

    Repeating the last post with the same content changes nothing, under any idempotency key. The
    call is recorded as the search method's last call, at most every 30 seconds, even if the search
    then refuses the post. Errors: `not_found` for an unknown experiment. `forbidden` for another
    user's experiment. `invalid` for a wrong operation, or for an acknowledged event that does not
    exist. `conflict` if `post` is not the next number, or is the last number with other content.
    `conflict` also if the search is over, or if the experiment has another kind of search.
    """
    message = OperationsPosted(_parse_post(body))
    address = addresses.experiment(experiment_id)
    record_method_call(services, experiment_id, caller)
    answer = request.execute(
        services,
        lambda extra_writes: services.engine.execute_command(
            address, message, by=request.by, extra_writes=extra_writes
        ),
        lambda reply: PostAnswer(**reply),
    )
    return answer_response(answer)


def _parse_post(body: PostBody) -> PostedOperations:
    try:
        operations = parse_operations(body.operations)
    except PostRefused as error:
        raise invalid("", str(error)) from None
    return PostedOperations(body.post, body.acknowledged, operations)
