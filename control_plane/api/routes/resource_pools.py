"""Resource pools: listed, created and changed while the cluster runs, drained, removed."""

from functools import partial
from typing import Annotated, Any

from fastapi import Path, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from control_plane.actors.pool import POOLS
from control_plane.api.auth import Role
from control_plane.api.bodies import Body, RequestBody
from control_plane.api.configuration import (
    Applied,
    Difference,
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
    resource_pools,
)
from control_plane.api.views.resource_pool import (
    resource_pool as shown,
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


class PoolAsked(RequestBody):
    """The body of `PUT /resource-pools/{name}`; without `config` the overrides change the present
    one.
    """

    config: Text | None = None
    overrides: Annotated[
        list[Annotated[str, Field(max_length=4096)]], Field(max_length=OVERRIDES_MAX)
    ] = []


class ConfigurationAsked(RequestBody):
    """The body of `PUT /cluster/configuration`."""

    config: Text
    dry_run: bool = False


class Removed(Body):
    """The name of a pool that is no more."""

    name: str


class Configuration(Body):
    """The configuration in force, with every default."""

    config: dict[str, Any]


@router.get("/resource-pools")
@needs(*PEOPLE)
def list_pools(services: Given, asked: PageParameters) -> Page[ResourcePoolView]:
    rows, cursor = scanned(services.table, POOLS, asked)
    items = resource_pools(services, [row.key.sort for row in rows])
    return Page(items=items, next_cursor=cursor)


@router.get("/resource-pools/{resource_pool}")
@needs(*PEOPLE)
def describe(resource_pool: PoolName, services: Given) -> ResourcePoolWhole:
    return shown(services, resource_pool)


@router.put("/resource-pools/{resource_pool}", response_model=ResourcePoolWhole)
@needs(Role.ADMIN, body_bytes_max=CONFIG_BYTES_MAX)
def put(resource_pool: PoolName, asked: PoolAsked, once: AskedOnce, services: Given) -> Response:
    def effect(beside: Beside) -> object:
        cluster = cluster_config(services)
        present = cluster.pool(resource_pool)
        wanted = check_pool(resource_pool, asked.config, asked.overrides, present)
        check_providers(services, {"": wanted})
        configure_pool(services, wanted, cluster, once.by, lambda _: beside(resource_pool))
        return resource_pool

    try:
        return once.carried_out(services, effect, partial(shown, services))
    except ConfigInvalid as error:
        raise config_invalid(error, "the pool's configuration is not valid") from None


@router.post("/resource-pools/{resource_pool}/drain", response_model=ResourcePoolWhole)
@needs(Role.ADMIN)
def drain(resource_pool: PoolName, once: AskedOnce, services: Given) -> Response:
    return _drained(services, resource_pool, True, once)


@router.post("/resource-pools/{resource_pool}/undrain", response_model=ResourcePoolWhole)
@needs(Role.ADMIN)
def undrain(resource_pool: PoolName, once: AskedOnce, services: Given) -> Response:
    return _drained(services, resource_pool, False, once)


@router.delete("/resource-pools/{resource_pool}", response_model=Removed)
@needs(Role.ADMIN)
def delete(resource_pool: PoolName, once: AskedOnce, services: Given) -> Response:
    def effect(beside: Beside) -> object:
        pools.existing(services, resource_pool)
        check_removable(services, resource_pool)
        remove_pool(services, resource_pool, once.by, lambda _: beside(resource_pool))
        return resource_pool

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
    if asked.dry_run:
        found = checked_difference(services, wanted)
        return JSONResponse(_told(found, dry_run=True).model_dump(mode="json"))

    def effect(beside: Beside) -> object:
        found = checked_difference(services, wanted)
        reply = _told(found).model_dump(mode="json")
        apply(services, found, once.by, lambda _: beside(reply))
        return reply

    return once.carried_out(services, effect, lambda reply: Applied(**reply))


def _told(found: Difference, *, dry_run: bool = False) -> Applied:
    return Applied(changes=list(found.changes), shared=list(found.shared), dry_run=dry_run)


def _drained(services: Services, name: str, draining: bool, once: Once) -> Response:
    def effect(beside: Beside) -> object:
        pools.existing(services, name)
        set_draining(services, name, draining, once.by, lambda _: beside(name))
        return name

    return once.carried_out(services, effect, partial(shown, services))
