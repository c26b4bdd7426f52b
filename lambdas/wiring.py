"""The composition root: which parts a process is made of."""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from fastapi import FastAPI

from control_plane.actors import addresses
from control_plane.actors.pool_messages import PoolConfigured
from control_plane.agents.leases import mark_ended
from control_plane.agents.logs import TrialLogs
from control_plane.agents.segments import stored
from control_plane.agents.service import AgentService
from control_plane.agents.spec import spec_builder
from control_plane.api.app import create_app
from control_plane.api.auth import Principal, Role, StaticTokens, digest_of
from control_plane.api.configuration import apply, checked_difference
from control_plane.api.idempotency import nothing
from control_plane.api.pool_store import cluster_config
from control_plane.api.services import Services
from control_plane.api.signing import Signer
from control_plane.api.token_table import TableTokens
from control_plane.api.views.pool import pool_names
from control_plane.api.waiting import WaitingRoom
from control_plane.collection.collector import Collector
from control_plane.collection.stores import Stores
from control_plane.config.pools import check_cluster
from control_plane.dispatch.engine import Engine
from control_plane.objects.directory import DirectoryStore
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable
from control_plane.suggestions.suggester import Suggester
from detcloud import __version__
from lambdas.clock import now_ms
from lambdas.home import HomeFolder
from lambdas.suggesting import Suggesting

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
POOL = "default"

_CLUSTER = Key("cluster", "id")


@dataclass(frozen=True)
class Embedded:
    """The parts of an embedded cluster's server. `own_pool`: which pool the machine's own agent
    belongs to, "" for none.
    """

    app: FastAPI
    engine: Engine
    table: SqliteTable
    waiting: WaitingRoom
    collector: Collector
    suggesting: Suggesting
    cluster_id: str
    own_pool: str


def embedded(home: HomeFolder, user: str, config: str | None = None) -> Embedded:
    """A cluster on the files of `home`, whose one person is `user`. Its pools are those of the
    cluster configuration `config`, without one those it had, or one.

    Raises:
        ConfigInvalid: the configuration has problems.
        ApiError: it cannot be applied.
    """
    table = SqliteTable(home.state)
    engine = Engine(table, now_ms)
    signer = Signer(home.secret("signing.key").encode())
    objects = DirectoryStore(home.objects, signer)
    cluster_id = _cluster_id(table)
    waiting = WaitingRoom()
    suggesting = Suggesting(Suggester(engine))
    engine.on_commit = waiting.changed
    engine.on_row = suggesting.row_written
    services = Services(
        tokens=TableTokens(table, StaticTokens({}), now_ms),
        objects=objects,
        signer=signer,
        now_ms=now_ms,
        hosts=LOOPBACK,
        engine=engine,
        agents=AgentService(
            engine,
            spec_builder(cluster_id, home.checkpoints),
            TrialLogs(table, objects).store,
            partial(stored, objects),
        ),
        cluster_id=cluster_id,
        version=__version__,
        checkpoints=home.checkpoints,
        waiting=waiting,
        providers=frozenset({"local"}),
    )
    own_pool = _configured(services, user, config)
    tokens = TableTokens(table, _people(home, user, own_pool), now_ms)
    app = create_app(replace(services, tokens=tokens))
    collector = Collector(Stores(engine, objects, home.checkpoints))
    return Embedded(app, engine, table, waiting, collector, suggesting, cluster_id, own_pool)


def _configured(services: Services, user: str, config: str | None) -> str:
    """Sees to it that there are pools, and returns that of the machine's own agent: where work goes
    that names no pool, unless that pool launches its agents itself.
    """
    if config is not None:
        wanted = check_cluster(config)
        _leave(services, [name for name in pool_names(services) if wanted.pool(name) is None])
        apply(services, checked_difference(services, wanted), user, nothing)
    elif not pool_names(services):
        services.engine.command(addresses.pool(POOL), PoolConfigured(POOL))
    cluster = cluster_config(services)
    name = cluster.resource_manager.default_compute_resource_pool
    pool = cluster.pool(name)
    return name if pool is not None and pool.provider is None else ""


def own_agent(pool: str) -> str:
    """What the machine's own agent is called in a pool."""
    return "local" if pool == POOL else f"local-{pool}"


def _leave(services: Services, pools: Iterable[str]) -> None:
    """The machine's own agent, which an earlier server had, leaves these pools: it is not to keep
    them from being removed.
    """
    engine = services.engine
    for pool in pools:
        # One that has spoken just now is still running, and is no agent of an earlier server.
        with suppress(Conflict):
            mark_ended(engine.table, pool, own_agent(pool), engine.clock(), engine.follow)


def _people(home: HomeFolder, user: str, own_pool: str) -> StaticTokens:
    holders: Iterable[tuple[str, Principal]] = (
        ("token", Principal(user, Role.ADMIN)),
        ("agent.token", Principal("local agent", Role.JOIN, own_pool)),
    )
    return StaticTokens({digest_of(home.secret(name)): principal for name, principal in holders})


def _cluster_id(table: StateTable) -> str:
    row = table.get(_CLUSTER)
    if row is not None:
        return row.body.decode()
    cluster_id = str(uuid.uuid4())
    table.commit((Put(_CLUSTER, 1, cluster_id.encode(), Expect.ABSENT),))
    return cluster_id
