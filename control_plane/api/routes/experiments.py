"""Routes of experiments: submit, list, describe, change, and pause, activate or end them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from control_plane.access.principals import USER_ROLES
from control_plane.actors import addresses
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    ArchiveRequested,
    CancelRequested,
    ContinueRequested,
    DeleteRequested,
    KillRequested,
    PauseRequested,
    SettingsChanged,
    UnarchiveRequested,
)
from control_plane.actors.records import JobKind, Retention
from control_plane.api.dependencies import (
    ExperimentId,
    IdempotencyParameter,
    PageParameters,
    ServicesParameter,
)
from control_plane.api.metadata import (
    EXPERIMENT_METADATA_BYTES_MAX,
    MetadataFilters,
    check_metadata,
    parse_metadata_filters,
)
from control_plane.api.owned_objects import experiment_in_path, only_own
from control_plane.api.project_names import GroupName, check_group_name
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.config.described_texts import (
    LABEL_CHARACTERS_MAX,
    LABELS_MAX,
    Description,
    ExperimentName,
    Label,
)
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.store import SHA256_PATTERN
from control_plane.queries import activity, experiment_groups, experiment_list
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.queries import trial as trials
from control_plane.queries.activity import Activity
from control_plane.queries.experiment_columns import (
    COLUMN_CHARACTERS_MAX,
    COLUMNS_MAX,
    parse_column,
)
from control_plane.queries.experiment_groups import ExperimentGroups
from control_plane.queries.experiment_list import ExperimentFilter
from control_plane.queries.experiment_order import Order, parse_sort
from control_plane.queries.experiment_terms import parse_conditions
from control_plane.queries.filter_text import CHARACTERS_MAX
from control_plane.queries.pages import Page
from control_plane.queries.state_filter import parse_trial_states
from control_plane.services import Services
from control_plane.usecases.continuation import continue_command
from control_plane.usecases.experiment_deletion import check_unpinned
from control_plane.usecases.idempotency import ExtraWrites, IdempotentRequest
from control_plane.usecases.submission import Submission, check_submission, submit_experiment

CONFIG_CHARACTERS_MAX = 256 * 1024

router = guarded_router("experiments")

SearchText = Annotated[str | None, Query(max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class CreateBody(RequestBody):
    """The body of `POST /experiments`; docs/api.md describes the fields."""

    config: Annotated[str, Field(max_length=CONFIG_CHARACTERS_MAX)]
    model_code: Annotated[str, Field(pattern=SHA256_PATTERN)] | None = None
    template: Annotated[str, Field(max_length=100)] | None = None
    overrides: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=200)] = []
    paused: bool = False
    test_mode: bool = False
    validate_only: bool = False
    kind: Annotated[JobKind, Field(strict=False)] = JobKind.EXPERIMENT
    forked_from: Annotated[int, Field(ge=1, le=10**12 - 1)] | None = None
    restored_from: Annotated[int, Field(ge=1, le=10**12 - 1)] | None = None


class ContinueBody(RequestBody):
    """The body of `POST /experiments/{id}/continue`. An override is a text `path=value`."""

    overrides: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=20)] = []
    validate_only: bool = False


class ExperimentChangeBody(RequestBody):
    """The fields of an experiment to change. Absent fields stay unchanged."""

    name: ExperimentName | None = None
    description: Description | None = None
    labels: Annotated[list[Label], Field(max_length=LABELS_MAX)] | None = None
    max_slots: Count | None = None
    weight: float | None = None
    priority: int | None = None
    max_cost: Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)] | None = None
    save_experiment_best: Count | None = None
    save_trial_best: Count | None = None
    save_trial_latest: Count | None = None
    workspace: GroupName | None = None
    project: GroupName | None = None
    metadata: dict[str, Any] | None = None
    revision: Annotated[str, Field(max_length=64)] | None = None


@router.post("/experiments", status_code=201, response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=only_own)
def create(
    body: CreateBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
    traceparent: Annotated[str, Header()] = "",
    x_detcloud_traceparent: Annotated[str, Header()] = "",
) -> Response:
    """Create an experiment, or a command, notebook or shell as `kind` says; return the experiment.

    The caller becomes the owner. With `validate_only`, nothing is created, and `model_code` may be
    omitted. The status is then 200 instead of 201, and the answer is the experiment that would be
    created, with the id null. `forked_from` is the id of the experiment that is forked, and makes
    both a family. `restored_from` is the id of a notebook or shell: a notebook or shell starts with
    its last snapshot of files, and `model_code` is ignored. The runs of the experiment continue the
    trace of the header `x-detcloud-traceparent`, or else of `traceparent`. An invalid header is
    ignored. A cluster on Google Cloud ignores `traceparent`, which Google changes. Errors:
    `invalid` for problems of the configuration, for a missing template, model code, forked
    experiment or snapshot, and for pools that cannot run the experiment. `forbidden` for the files
    of another user. `conflict` if the checkpoint to start from was deleted in the meantime.
    `too_large` for an experiment that is too large to store. `unavailable` if too many experiments
    are created at the same time.
    """
    if body.model_code is None and body.restored_from is None and not body.validate_only:
        raise invalid("model_code", "is missing", "only validate_only works without it")
    submission = Submission(
        config=body.config,
        model_code=body.model_code,
        template=body.template,
        overrides=body.overrides,
        paused=body.paused,
        test_mode=body.test_mode,
        kind=body.kind,
        forked_from=body.forked_from,
        restored_from=body.restored_from,
        traceparent=x_detcloud_traceparent or traceparent,
        # A test run of a schedule's configuration runs once.
        may_be_scheduled=body.validate_only or body.test_mode,
    )
    checked = check_submission(services, submission, caller)
    if body.validate_only:
        preview = experiments.experiment_preview(checked.message, checked.config, checked.warnings)
        return JSONResponse(preview.model_dump(mode="json"))
    warnings = list(checked.warnings)

    def submit(extra_writes: ExtraWrites) -> object:
        try:
            return submit_experiment(services, checked, caller.user, extra_writes)
        except RequestError as error:
            if submission.restored_from is None or error.code is not Code.CONFLICT:
                raise
            # The running source has saved a newer snapshot since the check.
            again = check_submission(services, submission, caller)
            return submit_experiment(services, again, caller.user, extra_writes)

    answer = request.execute(
        services,
        submit,
        lambda experiment_id: experiments.describe_experiment(services, experiment_id, warnings),
        status=201,
    )
    return answer_response(answer)


def _filter(
    state: SearchText = None,
    user: SearchText = None,
    label: Annotated[str | None, Query(max_length=LABEL_CHARACTERS_MAX)] = None,
    name: SearchText = None,
    archived: Literal["false", "true", "all"] = "false",
    workspace: SearchText = None,
    project: SearchText = None,
    metadata: MetadataFilters = None,
) -> ExperimentFilter:
    check_group_name("workspace", workspace)
    check_group_name("project", project)
    terms = parse_metadata_filters(metadata)
    return ExperimentFilter(state, user, label, name, archived, workspace, project, terms)


def _table_form(
    sort: Annotated[str, Query(max_length=COLUMN_CHARACTERS_MAX)] = "id",
    order: Order = "desc",
    columns: Annotated[list[str] | None, Query(max_length=COLUMNS_MAX)] = None,
) -> experiment_list.TableForm:
    shown = tuple(parse_column(text, "columns") for text in columns or ())
    return experiment_list.TableForm(parse_sort(sort), order, shown)


@router.get("/experiments")
@require_role(*USER_ROLES)
def list_experiments(
    caller: Caller,
    services: ServicesParameter,
    page: PageParameters,
    shown: Annotated[ExperimentFilter, Depends(_filter)],
    form: Annotated[experiment_list.TableForm, Depends(_table_form)],
    kind: Annotated[str, Query(max_length=200)] = JobKind.EXPERIMENT,
    has_failed_trials: bool | None = None,
    text: Annotated[str, Query(alias="filter", max_length=CHARACTERS_MAX)] = "",
) -> experiment_list.ExperimentPage:
    """List experiments that meet all conditions, newest first or in another order.

    `filter` is a text such as `state:running metric:loss<0.3 lr>0.01`, and the other conditions
    hold besides. `columns` may be repeated: `metric:NAME` or `hparam:PATH`, whose values are in
    `values`. `sort` is a field or such a column. `state` and `kind` are lists separated by commas;
    the kind `all` shows every kind. `state` accepts conditions such as `queued` and stored states
    such as `ACTIVE`. `name` is a part of the name, in any case. `metadata` has the form `key=value`
    and may be repeated. A page may be short or empty although `next_cursor` is set. Orders other
    than `sort=id` cover only the newest experiments; `left_out_before` is the id below which
    experiments are left out. Error: `invalid` for an unknown state or kind, a wrong filter, with
    the place in `column`, a wrong column, or a cursor of another list.
    """
    conditions = parse_conditions(text, caller.user, services.now_ms())
    shown = replace(shown, kinds=kind, has_failed_trials=has_failed_trials, conditions=conditions)
    return experiment_list.list_experiments(services, page, shown, form)


@router.get("/experiment-groups")
@require_role(*USER_ROLES)
def count_groups(
    caller: Caller,
    services: ServicesParameter,
    shown: Annotated[ExperimentFilter, Depends(_filter)],
    text: Annotated[str, Query(alias="filter", max_length=CHARACTERS_MAX)] = "",
) -> ExperimentGroups:
    """Count the experiments of each project that meet all conditions of `GET /experiments`.

    Only the newest experiments count; `left_out_before` is the id below which experiments are left
    out. Error: `invalid` for an unknown state or a wrong filter, with the place in `column`.
    """
    conditions = parse_conditions(text, caller.user, services.now_ms())
    return experiment_groups.count_groups(services, replace(shown, conditions=conditions))


@router.get("/experiments/{experiment_id}")
@require_role(*USER_ROLES)
def describe(
    experiment_id: ExperimentId, services: ServicesParameter
) -> experiments.ExperimentWithConfig:
    return experiments.describe_experiment_with_config(services, experiment_id)


@router.get("/experiments/{experiment_id}/activity")
@require_role(*USER_ROLES)
def describe_activity(experiment_id: ExperimentId, services: ServicesParameter) -> Activity:
    """Return the activity of an experiment, with the reason of a wait and the expected end.

    Errors: `not_found` for an unknown or deleted experiment. `unavailable` if the experiment's pool
    changes too fast to be read.
    """
    return activity.describe_activity(services, experiment_id)


@router.post("/experiments/{experiment_id}/pause", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def pause(
    experiment_id: ExperimentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    return _execute(services, experiment_id, PauseRequested, request)


@router.post("/experiments/{experiment_id}/activate", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def activate(
    experiment_id: ExperimentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    return _execute(services, experiment_id, ActivateRequested, request)


@router.post("/experiments/{experiment_id}/cancel", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def cancel(
    experiment_id: ExperimentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """End an experiment after the trials have saved a checkpoint, and return the experiment.

    Canceling an experiment that is already being canceled changes nothing. Canceling an experiment
    that is ending for another reason, or has ended, changes nothing in the length era, and is a
    `conflict` in the step era. Errors: `not_found` for an unknown or deleted experiment.
    `forbidden` for another user's experiment.
    """
    return _execute(services, experiment_id, CancelRequested, request)


@router.post("/experiments/{experiment_id}/kill", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def kill(
    experiment_id: ExperimentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """End an experiment immediately, and return the experiment.

    In the length era, killing changes nothing if the experiment has ended or is ending for another
    reason than a cancellation. In the step era, killing is `not_found` for an experiment that has
    ended, and kills the trials of an experiment that is ending. Errors: `not_found` for an unknown
    or deleted experiment. `forbidden` for another user's experiment.
    """
    return _execute(services, experiment_id, KillRequested, request)


@router.post("/experiments/{experiment_id}/archive", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def archive(
    experiment_id: ExperimentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Leave an ended experiment out of lists by default, and return the experiment.

    Archiving an archived experiment changes nothing. Errors: `not_found` for an unknown or deleted
    experiment. `forbidden` for another user's experiment. `conflict` if the experiment has not
    ended, is being deleted, or could not be deleted.
    """
    return _execute(services, experiment_id, ArchiveRequested, request)


@router.post("/experiments/{experiment_id}/unarchive", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def unarchive(
    experiment_id: ExperimentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    return _execute(services, experiment_id, UnarchiveRequested, request)


@router.post("/experiments/{experiment_id}/continue", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def resume(
    experiment_id: ExperimentId,
    body: ContinueBody,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Continue an ended experiment, and return the experiment.

    Trials that did not complete continue from the latest checkpoints. `overrides` may only increase
    `max_restarts`, and the length of the single searcher. With `validate_only`, the overrides are
    checked and nothing changes. Errors: `not_found` for an unknown experiment. `forbidden` for
    another user's experiment. `invalid` for a wrong override. `conflict` if the experiment has not
    ended, is archived, cannot be continued, or has nothing left to do.
    """

    def message() -> ContinueRequested:
        _, definition = experiments.get_experiment(services, experiment_id)
        return continue_command(definition, body.overrides)

    if body.validate_only:
        message()
        unchanged = experiments.describe_experiment(services, experiment_id)
        return JSONResponse(unchanged.model_dump(mode="json"))
    return _execute(services, experiment_id, message, request)


@router.patch("/experiments/{experiment_id}", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def change(
    experiment_id: ExperimentId,
    body: ExperimentChangeBody,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Change settings of an experiment, and return the experiment.

    A null `max_slots` or `max_cost` removes the limit. Other nulls change nothing. A `max_cost`
    that the costs have reached, or will reach soon, pauses the experiment. Another priority undoes
    an earlier move in the queue. Numbers of checkpoints to keep also request a collection, even if
    the numbers are unchanged. Errors: `not_found` for an unknown experiment. `forbidden` for
    another user's experiment. `invalid` for a value out of range, an invalid name, or metadata of
    more than 4 KiB. `conflict` if the experiment is being deleted, or if `revision` is given and
    the texts that users edit have another revision.
    """

    if body.metadata is not None:
        check_metadata(body.metadata, EXPERIMENT_METADATA_BYTES_MAX)

    def message() -> SettingsChanged:
        return SettingsChanged(
            name=body.name,
            description=body.description,
            labels=None if body.labels is None else tuple(dict.fromkeys(body.labels)),
            max_slots=body.max_slots,
            max_slots_given="max_slots" in body.model_fields_set,
            weight=body.weight,
            priority=body.priority,
            max_cost=body.max_cost,
            max_cost_given="max_cost" in body.model_fields_set,
            retention=_changed_retention(services, experiment_id, body),
            workspace=body.workspace,
            project=body.project,
            metadata=body.metadata,
            revision=body.revision,
        )

    return _execute(services, experiment_id, message, request)


@router.delete("/experiments/{experiment_id}", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def delete(
    experiment_id: ExperimentId, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Delete an ended experiment. Checkpoints, logs and metrics are deleted in the background.

    Return the experiment. A request during the deletion changes nothing, and a request after a
    failed deletion begins the deletion again. Errors: `not_found` for an unknown experiment.
    `forbidden` for another user's experiment. `conflict` if the experiment has not ended, or if a
    user, a model's version or another experiment has pinned a checkpoint.
    """

    def message() -> DeleteRequested:
        check_unpinned(services, experiment_id)
        return DeleteRequested()

    return _execute(services, experiment_id, message, request)


@router.get("/experiments/{experiment_id}/trials")
@require_role(*USER_ROLES)
def list_trials(
    experiment_id: ExperimentId,
    services: ServicesParameter,
    page: PageParameters,
    metadata: MetadataFilters = None,
    state: SearchText = None,
) -> Page[trials.Trial]:
    """List the trials of an experiment by number, or the trials that meet all filters.

    `metadata` has the form `key=value` and may be repeated. `state` is a list of conditions and
    stored states, separated by commas. With a filter, a page may be short or empty although
    `next_cursor` is set. Errors: `not_found` for an unknown experiment. `invalid` for a wrong
    filter or a cursor of another list.
    """
    terms, states = parse_metadata_filters(metadata), parse_trial_states(state)
    return trials.list_trials(services, experiment_id, page, terms, states)


@router.get("/experiments/{experiment_id}/checkpoints")
@require_role(*USER_ROLES)
def list_checkpoints(
    experiment_id: ExperimentId, services: ServicesParameter, page: PageParameters
) -> Page[checkpoints.Checkpoint]:
    return checkpoints.list_experiment_checkpoints(services, experiment_id, page)


def _changed_retention(
    services: Services, experiment_id: int, body: ExperimentChangeBody
) -> Retention | None:
    names = ("save_experiment_best", "save_trial_best", "save_trial_latest")
    changes = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    if not changes:
        return None
    current = experiments.current_settings(
        services, *experiments.get_experiment(services, experiment_id)
    ).retention
    return replace(current, **changes)


def _execute(
    services: Services,
    experiment_id: int,
    message: Callable[[], object],
    request: IdempotentRequest,
) -> Response:
    """Execute a command of the experiment once per idempotency key; answer with the experiment.

    `message` builds the command, and is not called for a repeated request. Errors of `message`, and
    refusals of the command, pass on.
    """
    address = addresses.experiment(experiment_id)
    answer = request.execute(
        services,
        lambda extra_writes: services.engine.execute_command(
            address, message(), by=request.by, extra_writes=extra_writes
        ),
        lambda reply: experiments.describe_experiment(services, reply),
    )
    return answer_response(answer)
