"""Routes of the model registry: models, and the versions of models, which pin checkpoints."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Response
from pydantic import Field

from control_plane.access.ownership import Action, FindOwned
from control_plane.access.principals import USER_ROLES, Principal
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.metadata import check_metadata
from control_plane.api.owned_objects import only_own
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.queries.model_records import (
    DEFAULT_WORKSPACE,
    ModelRecord,
    VersionRecord,
    find_owned_model,
    find_owned_version,
    load_model,
    load_version,
)
from control_plane.queries.models import (
    Model,
    ModelFilter,
    ModelVersion,
    list_models,
    list_versions,
    model_answer,
    version_answer,
)
from control_plane.queries.pages import Page
from control_plane.services import Services
from control_plane.state.table import Write
from control_plane.text_forms import text_form
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.model_versions import (
    VersionExtraWrites,
    delete_version,
    register_version,
    update_version,
)
from control_plane.usecases.models import (
    METADATA_BYTES_MAX,
    Changer,
    ModelExtraWrites,
    create_model,
    delete_model,
    update_model,
)

router = guarded_router("models")

# The signs have no meaning in a shell, a path or a list of names. No name begins with a dot,
# because clients would read `..` in a path as the parent folder.
NAME_PATTERN = text_form(
    r"^[A-Za-z0-9_]([A-Za-z0-9 _.+:@()-]*[A-Za-z0-9_.+:@()-])?$",
    "letters and digits of ASCII, spaces and _.+:@()-, of which the first is a letter, a digit or "
    "_ and the last no space",
)

ModelName = Annotated[str, Path(pattern=NAME_PATTERN, max_length=128)]
VersionNumber = Annotated[int, Path(ge=1, le=10**9 - 1)]
SearchText = Annotated[str | None, Query(max_length=200)]
WORKSPACE_PATTERN = text_form(
    r"^[^,\x00-\x1f\x7f]+$", "a name without commas and control characters"
)
Workspace = Annotated[str, Field(min_length=1, max_length=128, pattern=WORKSPACE_PATTERN)]
ShortText = Annotated[str, Field(max_length=4_000)]
Notes = Annotated[str, Field(max_length=16_000)]
Labels = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)]
Revision = Annotated[int, Field(ge=0, le=2**63 - 1)]


def _model_in_path(name: ModelName, services: ServicesParameter) -> FindOwned:
    return partial(find_owned_model, services.table, name)


def _version_in_path(
    name: ModelName, number: VersionNumber, services: ServicesParameter
) -> FindOwned:
    return partial(find_owned_version, services.table, name, number)


class ModelBody(RequestBody):
    """The body of `POST /models`; docs/api.md describes the fields."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=128)]
    workspace: Workspace = DEFAULT_WORKSPACE
    description: ShortText = ""
    notes: Notes = ""
    labels: Labels = []
    metadata: dict[str, Any] = {}


class ModelChangeBody(RequestBody):
    """The fields of a model to change. Absent fields stay unchanged.

    With `revision`, the model is changed only if the model still has this revision.
    """

    workspace: Workspace | None = None
    description: ShortText | None = None
    notes: Notes | None = None
    labels: Labels | None = None
    metadata: dict[str, Any] | None = None
    archived: bool | None = None
    revision: Revision | None = None


class VersionBody(RequestBody):
    """The body of `POST /models/{name}/versions`.

    `checkpoint_uuid` is the UUID of the checkpoint, or a prefix that no other checkpoint has.
    """

    checkpoint_uuid: Annotated[str, Field(min_length=1, max_length=36)]
    name: Annotated[str, Field(max_length=128)] = ""
    comment: ShortText = ""
    notes: Notes = ""
    labels: Labels = []
    metadata: dict[str, Any] = {}


class VersionChangeBody(RequestBody):
    """The fields of a version to change. Absent fields stay unchanged.

    With `revision`, the version is changed only if the version still has this revision.
    """

    name: Annotated[str, Field(max_length=128)] | None = None
    comment: ShortText | None = None
    notes: Notes | None = None
    labels: Labels | None = None
    metadata: dict[str, Any] | None = None
    revision: Revision | None = None


@router.get("/models")
@require_role(*USER_ROLES)
def list_all(
    services: ServicesParameter,
    page: PageParameters,
    name: SearchText = None,
    workspace: SearchText = None,
    label: SearchText = None,
    user: SearchText = None,
    archived: Literal["false", "true", "all"] = "false",
    order: Literal["asc", "desc"] = "asc",
) -> Page[Model]:
    """List the models that meet all conditions, sorted by name.

    `name` is a part of the name, in any case. `workspace` may have several names, separated by
    commas. `user` is the creator. A page has at most 30 models, and may be short or empty although
    `next_cursor` is set. Error: `invalid` for a cursor of another list.
    """
    workspaces = () if workspace is None else tuple(workspace.split(","))
    shown = ModelFilter(name, workspaces, label, user, archived)
    return list_models(services.table, shown, page, descending=order == "desc")


@router.post("/models", status_code=201, response_model=Model)
@require_role(*USER_ROLES, changes=only_own)
def create(
    body: ModelBody, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    now_ms = services.now_ms()
    model = ModelRecord(
        user=caller.user, created_ms=now_ms, updated_ms=now_ms, **_given_fields(body)
    )
    answer = request.execute(
        services,
        lambda extra: _model_reply(*create_model(services.table, model, _model_writes(extra))),
        _model_from_reply,
        201,
    )
    return answer_response(answer)


@router.get("/models/{name}")
@require_role(*USER_ROLES)
def describe(name: ModelName, services: ServicesParameter) -> Model:
    model, row = load_model(services.table, name)
    return model_answer(model, row.revision)


@router.patch("/models/{name}", response_model=Model)
@require_role(*USER_ROLES, changes=_model_in_path)
def change(
    name: ModelName,
    body: ModelChangeBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Change fields of a model, and return the model.

    If all fields already have the new values, nothing changes. Errors: `not_found` for an unknown
    model. `forbidden` for another user's model. `invalid` for metadata that cannot be stored.
    `conflict` if the model has another revision than `revision`, or is archived and stays archived.
    `too_large` for a model of more than 96 KiB. `unavailable` if other requests keep changing the
    model.
    """
    changes = _given_fields(body)

    def effect(extra_writes: ExtraWrites) -> object:
        changed = update_model(
            services.table,
            name,
            changes,
            _changer(caller, services),
            _model_writes(extra_writes),
            expected_revision=body.revision,
        )
        return _model_reply(*changed)

    return answer_response(request.execute(services, effect, _model_from_reply))


@router.delete("/models/{name}", response_model=Model)
@require_role(*USER_ROLES, changes=_model_in_path)
def delete(
    name: ModelName, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Delete a model and all versions, and return the deleted model.

    The versions' pins are removed, so that the checkpoints can be deleted. Versions are deleted in
    several steps before the model: after an error, the model may have fewer versions or none.
    Repeat the request to delete the rest. Errors: `not_found` for an unknown model. `forbidden` for
    another user's model. `unavailable` if other requests keep changing the model.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        changer, writes = _changer(caller, services), _model_writes(extra_writes)
        return _model_reply(*delete_model(services.table, name, changer, writes))

    return answer_response(request.execute(services, effect, _model_from_reply))


@router.get("/models/{name}/versions")
@require_role(*USER_ROLES)
def list_versions_of_model(
    name: ModelName, services: ServicesParameter, page: PageParameters
) -> Page[ModelVersion]:
    """List the versions of a model, the newest version first, at most 30 on a page.

    Errors: `not_found` for an unknown model. `invalid` for a cursor of another list.
    """
    return list_versions(services.table, name, page)


@router.post("/models/{name}/versions", status_code=201, response_model=ModelVersion)
@require_role(*USER_ROLES, changes=_model_in_path, action=Action.REGISTER)
def register(
    name: ModelName,
    body: VersionBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Register a checkpoint as the next version of a model, and return the version.

    The version pins the checkpoint: the checkpoint is not deleted while the version exists. The
    checkpoint may belong to another user's experiment. Errors: `not_found` for an unknown model or
    checkpoint. `forbidden` for another user's model. `invalid` for a prefix of several UUIDs, or
    for metadata that cannot be stored. `conflict` if the model is archived, or the checkpoint is
    damaged, deleted also in part, or already the checkpoint of 100 versions. `too_large` for a
    version of more than 96 KiB. `unavailable` if other requests keep changing the model.
    """
    fields = _given_fields(body)
    uuid = fields.pop("checkpoint_uuid")

    def effect(extra_writes: ExtraWrites) -> object:
        changer = _changer(caller, services)
        registered = register_version(
            services,
            name,
            uuid,
            fields,
            changer,
            _version_writes(extra_writes),
        )
        return _version_reply(*registered)

    return answer_response(request.execute(services, effect, _version_from_reply, 201))


@router.get("/models/{name}/versions/{number}")
@require_role(*USER_ROLES)
def describe_version(
    name: ModelName, number: VersionNumber, services: ServicesParameter
) -> ModelVersion:
    version, row = load_version(services.table, name, number)
    return version_answer(version, row.revision)


@router.patch("/models/{name}/versions/{number}", response_model=ModelVersion)
@require_role(*USER_ROLES, changes=_version_in_path)
def change_version(
    name: ModelName,
    number: VersionNumber,
    body: VersionChangeBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Change fields of a model's version, and return the version.

    The owners are the user who registered the version, and the owner of the model. If all fields
    already have the new values, nothing changes. Errors: `not_found` for an unknown version.
    `forbidden` for callers other than owners and admins. `invalid` for metadata that cannot be
    stored. `conflict` if the version has another revision than `revision`, or the model is
    archived. `too_large` for a version of more than 96 KiB. `unavailable` if other requests keep
    changing the version.
    """
    changes = _given_fields(body)

    def effect(extra_writes: ExtraWrites) -> object:
        changed = update_version(
            services.table,
            name,
            number,
            changes,
            _changer(caller, services),
            _version_writes(extra_writes),
            expected_revision=body.revision,
        )
        return _version_reply(*changed)

    return answer_response(request.execute(services, effect, _version_from_reply))


@router.delete("/models/{name}/versions/{number}", response_model=ModelVersion)
@require_role(*USER_ROLES, changes=_version_in_path)
def delete_version_of_model(
    name: ModelName,
    number: VersionNumber,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Delete a version of a model, and return the deleted version.

    The version's pin is removed, so that the checkpoint can be deleted unless other pins exist. The
    number of the version is not used again. Errors: `not_found` for an unknown version. `forbidden`
    if the caller is neither an admin, nor the owner of the model, nor the user who registered the
    version. `unavailable` if other requests keep changing the model.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        deleted = delete_version(
            services.table,
            name,
            number,
            _changer(caller, services),
            _version_writes(extra_writes),
        )
        return _version_reply(*deleted)

    return answer_response(request.execute(services, effect, _version_from_reply))


def _changer(caller: Principal, services: Services) -> Changer:
    return Changer(caller, services.now_ms())


def _given_fields(body: RequestBody) -> dict[str, Any]:
    """Return the fields of a body that are not None, except `revision`, in the form of records.

    Repeated labels are removed.

    Raises:
        RequestError: invalid, for metadata of more than METADATA_BYTES_MAX bytes, or with values
            that cannot be stored.
    """
    fields = {name: value for name, value in body if value is not None and name != "revision"}
    if "labels" in fields:
        fields["labels"] = tuple(dict.fromkeys(fields["labels"]))
    check_metadata(fields.get("metadata", {}), METADATA_BYTES_MAX)
    return fields


def _model_writes(extra_writes: ExtraWrites) -> ModelExtraWrites:
    def make_writes(model: ModelRecord, revision: int) -> tuple[Write, ...]:
        return extra_writes(_model_reply(model, revision))

    return make_writes


def _model_reply(model: ModelRecord, revision: int) -> dict[str, Any]:
    return model_answer(model, revision).model_dump()


def _model_from_reply(reply: dict[str, Any]) -> Model:
    return Model(**reply)


def _version_reply(version: VersionRecord, revision: int) -> dict[str, Any]:
    return version_answer(version, revision).model_dump()


def _version_writes(extra_writes: ExtraWrites) -> VersionExtraWrites:
    def make_writes(version: VersionRecord, revision: int) -> tuple[Write, ...]:
        return extra_writes(_version_reply(version, revision))

    return make_writes


def _version_from_reply(reply: dict[str, Any]) -> ModelVersion:
    return ModelVersion(**reply)
