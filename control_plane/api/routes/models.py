"""Routes of the model registry: models, and their versions, which hold checkpoints."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query, Response
from pydantic import Field

from control_plane.access.principals import USER_ROLES, Principal, Role
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.metadata import check_metadata
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.queries.model_records import (
    DEFAULT_WORKSPACE,
    ModelRecord,
    VersionRecord,
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

# Letters, digits and signs that a shell, a path and a list of names leave alone, and spaces between
# them. No name begins with a dot: a client would take `..` in a path for the folder above.
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


class ModelBody(RequestBody):
    """The body of `POST /models`."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=128)]
    workspace: Workspace = DEFAULT_WORKSPACE
    description: ShortText = ""
    notes: Notes = ""
    labels: Labels = []
    metadata: dict[str, Any] = {}


class ModelChangeBody(RequestBody):
    """The fields of a model to change; absent ones stay."""

    workspace: Workspace | None = None
    description: ShortText | None = None
    notes: Notes | None = None
    labels: Labels | None = None
    metadata: dict[str, Any] | None = None
    archived: bool | None = None
    revision: Revision | None = None


class VersionBody(RequestBody):
    """The body of `POST /models/{name}/versions`."""

    checkpoint_uuid: Annotated[str, Field(min_length=1, max_length=36)]
    name: Annotated[str, Field(max_length=128)] = ""
    comment: ShortText = ""
    notes: Notes = ""
    labels: Labels = []
    metadata: dict[str, Any] = {}


class VersionChangeBody(RequestBody):
    """The fields of a version to change; absent ones stay."""

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
    """List the models by name. `workspace` may be several with commas between them."""
    workspaces = () if workspace is None else tuple(workspace.split(","))
    shown = ModelFilter(name, workspaces, label, user, archived)
    return list_models(services.table, shown, page, descending=order == "desc")


@router.post("/models", status_code=201, response_model=Model)
@require_role(*USER_ROLES)
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
@require_role(*USER_ROLES)
def change(
    name: ModelName,
    body: ModelChangeBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Change a model of one's own, or any as admin. With `revision` only if it is of that still."""
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
@require_role(*USER_ROLES)
def delete(
    name: ModelName, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Delete a model and its versions, which hold their checkpoints no longer."""

    def effect(extra_writes: ExtraWrites) -> object:
        changer, writes = _changer(caller, services), _model_writes(extra_writes)
        return _model_reply(*delete_model(services.table, name, changer, writes))

    return answer_response(request.execute(services, effect, _model_from_reply))


@router.get("/models/{name}/versions")
@require_role(*USER_ROLES)
def list_versions_of_model(
    name: ModelName, services: ServicesParameter, page: PageParameters
) -> Page[ModelVersion]:
    """List a model's versions, newest first."""
    return list_versions(services.table, name, page)


@router.post("/models/{name}/versions", status_code=201, response_model=ModelVersion)
@require_role(*USER_ROLES)
def register(
    name: ModelName,
    body: VersionBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Make a checkpoint the next version of a model; it stays as long as the version does."""
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
@require_role(*USER_ROLES)
def change_version(
    name: ModelName,
    number: VersionNumber,
    body: VersionChangeBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Change what is said of a version: of one's own, of one's own model, or of any as admin."""
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
@require_role(*USER_ROLES)
def delete_version_of_model(
    name: ModelName,
    number: VersionNumber,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Delete a version, which holds its checkpoint no longer."""

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
    return Changer(caller.user, caller.role is Role.ADMIN, services.now_ms())


def _given_fields(body: RequestBody) -> dict[str, Any]:
    """The fields of a body that say something, as records have them; RequestError invalid for
    metadata that cannot be kept.
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
