"""Routes of resource pools: list, create and change while the cluster runs, drain, remove."""

from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from control_plane.access.principals import USER_ROLES, Role
from control_plane.actors.job_row import POOLS
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.config.pool_warnings import default_type_notices, pool_warnings
from control_plane.config.pools import (
    POOL_NAME,
    check_cluster,
    check_pool,
    keep_deployed_fields,
)
from control_plane.config.problems import ConfigInvalid
from control_plane.queries import pool as pools
from control_plane.queries.answer import Answer
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.queries.pages import Page
from control_plane.queries.replacements import ReplacementSums, replacement_sums
from control_plane.queries.resource_pool import (
    ResourcePoolView,
    ResourcePoolWhole,
    describe_pool,
    describe_pools,
)
from control_plane.queries.row_pages import read_row_page
from control_plane.services import Services
from control_plane.usecases.cluster_configuration import (
    Action,
    ConfigurationDifference,
    apply_configuration,
    check_configuration,
    check_providers,
    check_removable,
)
from control_plane.usecases.config_errors import config_error
from control_plane.usecases.idempotency import ExtraWrites, IdempotentRequest
from control_plane.usecases.pool_settings import (
    configure_pool,
    remove_pool,
    set_draining,
)
from control_plane.usecases.quiet_hours import check_quiet_hours

CONFIG_CHARACTERS_MAX = 256 * 1024
CONFIG_BYTES_MAX = 2 * 1024 * 1024
OVERRIDES_MAX = 200
REPLACEMENT_DAYS = 30
# Rows of replacements are kept for this time.
REPLACEMENT_DAYS_MAX = 90

router = guarded_router("resource-pools")

PoolName = Annotated[str, Path(pattern=POOL_NAME)]
Text = Annotated[str, Field(max_length=CONFIG_CHARACTERS_MAX)]


class PoolBody(RequestBody):
    """The body of `PUT /resource-pools/{name}`.

    `config` is a YAML text. An override is a text `path=value`. Without `config`, the overrides
    change the current configuration of the pool.
    """

    config: Text | None = None
    overrides: Annotated[
        list[Annotated[str, Field(max_length=4096)]], Field(max_length=OVERRIDES_MAX)
    ] = []


class ConfigurationBody(RequestBody):
    """The body of `PUT /cluster/configuration`. `config` is a YAML text."""

    config: Text
    dry_run: bool = False


class PoolChange(Answer):
    """The action of a new configuration on a pool.

    `fields` are the paths of the changed values in the pool's configuration.
    """

    resource_pool: str
    action: Action
    fields: list[str] = []


class ConfigurationAnswer(Answer):
    """The changes that a configuration made, or would make with `dry_run`.

    `shared` has the paths of the changed values outside of the pools. `warnings` name the settings
    of pools that have no effect, and the instance types of pools that name none.
    """

    changes: list[PoolChange]
    shared: list[str] = []
    warnings: list[str] = []
    dry_run: bool = False


class PoolAnswer(ResourcePoolWhole):
    """A pool that was created or changed.

    `warnings` name the instance type of a pool that names none. A repeated request has no warnings.
    """

    warnings: list[str] = []


class RemovalAnswer(Answer):
    """The name of a removed pool."""

    name: str


class Configuration(Answer):
    """The configuration in force, with every default. Secrets are masked."""

    config: dict[str, Any]


@router.get("/resource-pools")
@require_role(*USER_ROLES)
def list_pools(services: ServicesParameter, page: PageParameters) -> Page[ResourcePoolView]:
    rows, cursor = read_row_page(services.table, POOLS, page)
    items = describe_pools(services, [row.key.sort for row in rows])
    return Page(items=items, next_cursor=cursor)


@router.get("/resource-pools/{resource_pool}")
@require_role(*USER_ROLES)
def describe(resource_pool: PoolName, services: ServicesParameter) -> ResourcePoolWhole:
    return describe_pool(services, resource_pool)


@router.get("/resource-pools/{resource_pool}/replacements")
@require_role(*USER_ROLES)
def sum_pool_replacements(
    resource_pool: PoolName,
    services: ServicesParameter,
    days: Annotated[int, Query(ge=1, le=REPLACEMENT_DAYS_MAX)] = REPLACEMENT_DAYS,
) -> ReplacementSums:
    """Sum up the replacements of the pool that ended in the last `days`, by cause and phase.

    Errors: `not_found` for an unknown pool. `invalid` for another number of days than 1 to 90.
    """
    return replacement_sums(services, resource_pool, days)


@router.put("/resource-pools/{resource_pool}", response_model=PoolAnswer)
@require_role(Role.ADMIN, body_bytes_max=CONFIG_BYTES_MAX)
def put(
    resource_pool: PoolName,
    body: PoolBody,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Create a pool, or change the configuration of a pool; return the pool with warnings.

    `config` replaces all fields, except the fields that the deployment filled in. A draining pool
    stays draining. Errors: `invalid` for problems of the configuration, or for a provider that the
    cluster does not support. `unavailable` if other requests keep changing the pool.
    """
    warnings: list[str] = []

    def effect(extra_writes: ExtraWrites) -> object:
        cluster = cluster_config(services)
        present = cluster.find_pool(resource_pool)
        pool = check_pool(resource_pool, body.config, body.overrides, present)
        check_providers(services, {"": pool}, cluster)
        check_quiet_hours({"": pool}, services.now_ms())
        warnings[:] = default_type_notices([pool])
        configure_pool(services, pool, cluster, request.by, lambda _: extra_writes(resource_pool))
        return resource_pool

    def describe_change(name: str) -> PoolAnswer:
        return PoolAnswer(**describe_pool(services, name).model_dump(), warnings=warnings)

    try:
        answer = request.execute(services, effect, describe_change)
        return answer_response(answer)
    except ConfigInvalid as error:
        raise config_error(error, "the pool's configuration is not valid") from None


@router.post("/resource-pools/{resource_pool}/drain", response_model=ResourcePoolWhole)
@require_role(Role.ADMIN)
def drain(
    resource_pool: PoolName, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Drain a pool, and return the pool. A draining pool accepts no new jobs and starts no trials.

    Running trials continue. Draining a draining pool changes nothing. Errors: `not_found` for an
    unknown pool. `unavailable` if other requests keep changing the pool.
    """
    return _set_draining(services, resource_pool, True, request)


@router.post("/resource-pools/{resource_pool}/undrain", response_model=ResourcePoolWhole)
@require_role(Role.ADMIN)
def undrain(
    resource_pool: PoolName, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    return _set_draining(services, resource_pool, False, request)


@router.delete("/resource-pools/{resource_pool}", response_model=RemovalAnswer)
@require_role(Role.ADMIN)
def delete(
    resource_pool: PoolName, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Remove an unused pool, and return the name.

    Errors: `not_found` for an unknown pool. `conflict` if the pool is a default pool, or has jobs,
    agents or instances. `unavailable` if the pool is too busy.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        pools.get_pool(services, resource_pool)
        check_removable(services, resource_pool)
        remove_pool(services, resource_pool, request.by, lambda _: extra_writes(resource_pool))
        return resource_pool

    answer = request.execute(services, effect, lambda reply: RemovalAnswer(name=reply))
    return answer_response(answer)


@router.get("/cluster/configuration")
@require_role(*USER_ROLES)
def configuration(services: ServicesParameter) -> Configuration:
    return Configuration(config=cluster_config(services).masked_values())


@router.put("/cluster/configuration", response_model=ConfigurationAnswer)
@require_role(Role.ADMIN, body_bytes_max=CONFIG_BYTES_MAX)
def configure(
    body: ConfigurationBody, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Apply a configuration to the whole cluster, and return the changes.

    Pools that are not in the configuration are removed. Fields of pools that the deployment filled
    in are kept if the configuration leaves them out. The whole configuration is checked before the
    first change. With `dry_run`, nothing is changed. Applying the same configuration again changes
    nothing. Errors: `invalid` for problems of the configuration, or a provider that the cluster
    does not support. `conflict` if a pool that would be removed has jobs, agents or instances.
    `unavailable` if other requests keep changing the configuration: repeat the request, because
    some of the changes may be made.
    """
    try:
        present = cluster_config(services)
        config = check_cluster(body.config, lambda tree: keep_deployed_fields(tree, present))
    except ConfigInvalid as error:
        raise config_error(error, "the cluster's configuration is not valid") from None
    if body.dry_run:
        difference = check_configuration(services, config)
        return JSONResponse(_configuration_answer(difference, dry_run=True).model_dump(mode="json"))

    def effect(extra_writes: ExtraWrites) -> object:
        difference = check_configuration(services, config)
        reply = _configuration_answer(difference).model_dump(mode="json")
        apply_configuration(services, difference, request.by, lambda _: extra_writes(reply))
        return reply

    answer = request.execute(services, effect, lambda reply: ConfigurationAnswer(**reply))
    return answer_response(answer)


def _configuration_answer(
    difference: ConfigurationDifference, *, dry_run: bool = False
) -> ConfigurationAnswer:
    changes = [
        PoolChange(
            resource_pool=change.resource_pool, action=change.action, fields=list(change.fields)
        )
        for change in difference.changes
    ]
    return ConfigurationAnswer(
        changes=changes,
        shared=list(difference.shared),
        warnings=list(pool_warnings(difference.after)),
        dry_run=dry_run,
    )


def _set_draining(
    services: Services, name: str, draining: bool, request: IdempotentRequest
) -> Response:
    def effect(extra_writes: ExtraWrites) -> object:
        set_draining(services, name, draining, request.by, lambda _: extra_writes(name))
        return name

    answer = request.execute(services, effect, partial(describe_pool, services))
    return answer_response(answer)
