"""Routes of schedules, which submit experiments at fixed times."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import Field

from control_plane.access.ownership import FindOwned
from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.owned_objects import only_own
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.api.routes.experiments import CONFIG_CHARACTERS_MAX
from control_plane.objects.store import SHA256_PATTERN
from control_plane.queries.pages import Page, PageRequest
from control_plane.queries.row_pages import read_row_page
from control_plane.queries.schedules import (
    SCHEDULE_CODEC,
    SCHEDULES,
    Schedule,
    ScheduleRecord,
    ScheduleWithConfig,
    describe_schedule,
    schedule_answer,
)
from control_plane.usecases.idempotency import ExtraWrites, IdempotentRequest
from control_plane.usecases.scheduled_runs import run_schedule_now
from control_plane.usecases.schedules import (
    ScheduleExtraWrites,
    activate_schedule,
    create_schedule,
    delete_schedule,
    find_owned_schedule,
    pause_schedule,
)
from control_plane.usecases.submission import Submission

# The most items of a page, because each schedule lists its last runs.
PAGE_MAX = 50

router = guarded_router("schedules")

ScheduleId = Annotated[int, Path(ge=1, le=10**12 - 1)]


def _schedule_in_path(schedule_id: ScheduleId, services: ServicesParameter) -> FindOwned:
    return partial(find_owned_schedule, services.table, schedule_id)


class ScheduleBody(RequestBody):
    """The body of `POST /schedules`. The configuration has the section `schedule`."""

    config: Annotated[str, Field(max_length=CONFIG_CHARACTERS_MAX)]
    model_code: Annotated[str, Field(pattern=SHA256_PATTERN)]
    template: Annotated[str, Field(max_length=100)] | None = None
    overrides: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=200)] = []
    paused: bool = False


class CreatedSchedule(Schedule):
    """A new schedule, with the warnings about the submission."""

    warnings: list[str] = []


@router.post("/schedules", status_code=201, response_model=CreatedSchedule)
@require_role(*USER_ROLES, changes=only_own)
def create(
    body: ScheduleBody, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Create a schedule, and return the schedule with the warnings about the submission.

    The caller becomes the owner of the schedule and of the experiments. The submission is checked
    now and at each time. Errors: `invalid` for a configuration without the section `schedule`, and
    for all problems of a submission. `too_large` for a large configuration. `conflict` if the
    cluster has 500 schedules.
    """
    submission = Submission(
        config=body.config,
        model_code=body.model_code,
        template=body.template,
        overrides=body.overrides,
        paused=body.paused,
    )
    warnings: tuple[str, ...] = ()

    def effect(extra_writes: ExtraWrites) -> object:
        nonlocal warnings
        record, warnings = create_schedule(
            services, submission, caller, lambda record: extra_writes(_reply(record))
        )
        return _reply(record)

    answer = request.execute(
        services,
        effect,
        lambda reply: CreatedSchedule(**reply, warnings=list(warnings)),
        status=201,
    )
    return answer_response(answer)


@router.get("/schedules")
@require_role(*USER_ROLES)
def list_schedules(services: ServicesParameter, page: PageParameters) -> Page[Schedule]:
    """List the schedules of all users, the newest first. Error: `invalid` for a wrong cursor."""
    short_page = PageRequest(min(page.limit, PAGE_MAX), page.cursor)
    rows, cursor = read_row_page(services.table, SCHEDULES, short_page, descending=True)
    items = [schedule_answer(SCHEDULE_CODEC.decode(row.body)) for row in rows]
    return Page(items=items, next_cursor=cursor)


@router.get("/schedules/{schedule_id}")
@require_role(*USER_ROLES)
def describe(schedule_id: ScheduleId, services: ServicesParameter) -> ScheduleWithConfig:
    """Return a schedule with the submitted configuration, secrets masked.

    Error: `not_found` for an unknown schedule.
    """
    return describe_schedule(services.table, schedule_id)


@router.post("/schedules/{schedule_id}/pause", response_model=Schedule)
@require_role(*USER_ROLES, changes=_schedule_in_path)
def pause(
    schedule_id: ScheduleId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Pause a schedule, and return the schedule. Submitted experiments continue.

    Pausing a paused schedule changes nothing. Errors: `not_found` for an unknown schedule.
    `forbidden` for another user's schedule.
    """
    return _execute(services, request, partial(pause_schedule, services, schedule_id))


@router.post("/schedules/{schedule_id}/activate", response_model=Schedule)
@require_role(*USER_ROLES, changes=_schedule_in_path)
def activate(
    schedule_id: ScheduleId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Continue a paused schedule with the first time from now, and return the schedule.

    Activating an active schedule changes nothing. Errors: `not_found` for an unknown schedule.
    `forbidden` for another user's schedule.
    """
    return _execute(services, request, partial(activate_schedule, services, schedule_id))


@router.post("/schedules/{schedule_id}/run", response_model=Schedule)
@require_role(*USER_ROLES, changes=_schedule_in_path)
def run_now(
    schedule_id: ScheduleId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Submit an experiment of a schedule at once, and return the schedule.

    The experiment belongs to the owner of the schedule. The next time stays, and a paused schedule
    stays paused. Errors: `not_found` for an unknown schedule. `forbidden` for another user's
    schedule. All errors of `POST /experiments`, for example `invalid`.
    """
    return _execute(services, request, partial(run_schedule_now, services, schedule_id))


@router.delete("/schedules/{schedule_id}", response_model=Schedule)
@require_role(*USER_ROLES, changes=_schedule_in_path)
def delete(
    schedule_id: ScheduleId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Delete a schedule, and return the deleted schedule. Submitted experiments are kept.

    Errors: `not_found` for an unknown schedule. `forbidden` for another user's schedule.
    """
    return _execute(services, request, partial(delete_schedule, services.table, schedule_id))


def _execute(
    services: ServicesParameter,
    request: IdempotentRequest,
    change: Callable[[ScheduleExtraWrites], ScheduleRecord],
) -> Response:
    """Execute a change of a schedule, and return the changed schedule."""

    def effect(extra_writes: ExtraWrites) -> object:
        return _reply(change(lambda record: extra_writes(_reply(record))))

    answer = request.execute(services, effect, _answer_from_reply)
    return answer_response(answer)


def _reply(record: ScheduleRecord) -> dict[str, Any]:
    return schedule_answer(record).model_dump()


def _answer_from_reply(reply: dict[str, Any]) -> Schedule:
    return Schedule(**reply)
