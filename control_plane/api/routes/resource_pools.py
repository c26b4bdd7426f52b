"""Resource pools: listed, created and changed while the cluster runs, drained, removed."""

from functools import partial
from typing import Annotated, Any

from fastapi import Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from control_plane.actors.pool import POOLS
from control_plane.api.auth import Role
from control_plane.api.configuration import (
    Applied,
    apply,
    check_providers,
    check_removable,
    checked_difference,
)
from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.idempotency import AskedOnce, Beside, Once
from control_plane.api.pages import Page, PageParameters
from control_plane.api.pool_store import (
    cluster_config,
    configure_pool,
    remove_pool,
    set_draining,
)
from control_plane.api.services import Given, Services
from control_plane.api.submission import config_invalid
from control_plane.api.views import pool as pools
from control_plane.api.views.resource_pool import (
    ResourcePoolView,
    ResourcePoolWhole,
    resource_pool,
    resource_pools,
)
from control_plane.api.views.rows import scanned
from control_plane.config import ConfigInvalid
from control_plane.config.pools import POOL_NAME, check_cluster, check_pool

CONFIG_CHARACTERS_MAX = 256 * 1024
CONFIG_BYTES_MAX = 2 * 1024 * 1024
OVERRIDES_MAX = 200

router = guarded_router("resource-pools")

PoolName = Annotated[str, Path(pattern=POOL_NAME)]
Text = Annotated[str, Field(max_length=CONFIG_CHARACTERS_MAX)]


class PoolAsked(BaseModel):
    """The body of `PUT /resource-pools/{name}`; without `config` the overrides change the present
    one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    config: Text | None = None
    overrides: Annotated[
        list[Annotated[str, Field(max_length=4096)]], Field(max_length=OVERRIDES_MAX)
    ] = []


class ConfigurationAsked(BaseModel):
    """The body of `PUT /cluster/configuration`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    config: Text
    dry_run: bool = False


class Removed(BaseModel):
    """The name of a pool that is no more."""

    name: str


class Configuration(BaseModel):
    """The configuration in force, with every default."""

    config: dict[str, Any]


@router.get("/resource-pools")
@needs(*PEOPLE)
def list_pools(services: Given, asked: PageParameters) -> Page[ResourcePoolView]:
    rows, cursor = scanned(services.table, POOLS, asked)
    items = resource_pools(services, [row.key.sort for row in rows])
    return Page(items=items, next_cursor=cursor)


@router.get("/resource-pools/{name}")
@needs(*PEOPLE)
def describe(name: PoolName, services: Given) -> ResourcePoolWhole:
    return resource_pool(services, name)


@router.put("/resource-pools/{name}", response_model=ResourcePoolWhole)
@needs(Role.ADMIN, body_bytes_max=CONFIG_BYTES_MAX)
def put(name: PoolName, asked: PoolAsked, once: AskedOnce, services: Given) -> Response:
    cluster = cluster_config(services)
    try:
        pool = check_pool(name, asked.config, asked.overrides, cluster.pool(name))
    except ConfigInvalid as error:
        raise config_invalid(error, "the pool's configuration is not valid") from None
    check_providers(services, {"": pool})

    def effect(beside: Beside) -> object:
        configure_pool(services, pool, cluster, once.by, lambda _: beside(name))
        return name

    return once.carried_out(services, effect, partial(resource_pool, services))


@router.post("/resource-pools/{name}/drain", response_model=ResourcePoolWhole)
@needs(Role.ADMIN)
def drain(name: PoolName, once: AskedOnce, services: Given) -> Response:
    return _drained(services, name, True, once)


@router.post("/resource-pools/{name}/undrain", response_model=ResourcePoolWhole)
@needs(Role.ADMIN)
def undrain(name: PoolName, once: AskedOnce, services: Given) -> Response:
    return _drained(services, name, False, once)


@router.delete("/resource-pools/{name}", response_model=Removed)
@needs(Role.ADMIN)
def delete(name: PoolName, once: AskedOnce, services: Given) -> Response:
    def effect(beside: Beside) -> object:
        pools.existing(services, name)
        check_removable(services, name)
        remove_pool(services, name, once.by, lambda _: beside(name))
        return name

    return once.carried_out(services, effect, lambda reply: Removed(name=reply))


@router.get("/cluster/configuration")
@needs(*PEOPLE)
def configuration(services: Given) -> Configuration:
    return Configuration(config=cluster_config(services).public())


@router.put("/cluster/configuration", response_model=Applied)
@needs(Role.ADMIN, body_bytes_max=CONFIG_BYTES_MAX)
def configure(asked: ConfigurationAsked, once: AskedOnce, services: Given) -> Response:
    """Everything is checked before anything changes; to apply the same again changes nothing."""
    try:
        wanted = check_cluster(asked.config)
    except ConfigInvalid as error:
        raise config_invalid(error, "the cluster's configuration is not valid") from None
    found = checked_difference(services, wanted)
    applied = Applied(changes=list(found.changes), shared=list(found.shared), dry_run=asked.dry_run)
    if asked.dry_run:
        return JSONResponse(applied.model_dump(mode="json"))
    reply = applied.model_dump(mode="json")

    def effect(beside: Beside) -> object:
        apply(services, found, once.by, lambda _: beside(reply))
        return reply

    return once.carried_out(services, effect, lambda stored: Applied(**stored))


def _drained(services: Services, name: str, draining: bool, once: Once) -> Response:
    def effect(beside: Beside) -> object:
        pools.existing(services, name)
        set_draining(services, name, draining, once.by, lambda _: beside(name))
        return name

    return once.carried_out(services, effect, partial(resource_pool, services))
