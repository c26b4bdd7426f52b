"""The composition root: which parts a process is made of."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import FastAPI

from control_plane.actors import addresses
from control_plane.actors.pool_messages import PoolConfigured
from control_plane.agents.logs import TrialLogs
from control_plane.agents.service import AgentService
from control_plane.agents.spec import spec_builder
from control_plane.api.app import create_app
from control_plane.api.auth import Principal, Role, StaticTokens, digest_of
from control_plane.api.services import Services
from control_plane.api.signing import Signer
from control_plane.api.token_table import TableTokens
from control_plane.api.waiting import WaitingRoom
from control_plane.collection.collector import Collector
from control_plane.collection.stores import Stores
from control_plane.dispatch.engine import Engine
from control_plane.objects.directory import DirectoryStore
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, StateTable
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
    """The parts of an embedded cluster's server."""

    app: FastAPI
    engine: Engine
    table: SqliteTable
    waiting: WaitingRoom
    collector: Collector
    suggesting: Suggesting
    cluster_id: str


def embedded(home: HomeFolder, user: str) -> Embedded:
    """A cluster on the files of `home`, whose one person is `user`; its pool exists."""
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
        tokens=TableTokens(table, _people(home, user), now_ms),
        objects=objects,
        signer=signer,
        now_ms=now_ms,
        hosts=LOOPBACK,
        engine=engine,
        agents=AgentService(
            engine,
            spec_builder(cluster_id, home.checkpoints),
            TrialLogs(table, objects).store,
        ),
        cluster_id=cluster_id,
        version=__version__,
        checkpoints=home.checkpoints,
        waiting=waiting,
    )
    engine.command(addresses.pool(POOL), PoolConfigured(POOL))
    collector = Collector(Stores(engine, objects, home.checkpoints))
    app = create_app(services)
    return Embedded(app, engine, table, waiting, collector, suggesting, cluster_id)


def _people(home: HomeFolder, user: str) -> StaticTokens:
    holders: Iterable[tuple[str, Principal]] = (
        ("token", Principal(user, Role.ADMIN)),
        ("agent.token", Principal("local agent", Role.JOIN, POOL)),
    )
    return StaticTokens({digest_of(home.secret(name)): principal for name, principal in holders})


def _cluster_id(table: StateTable) -> str:
    row = table.get(_CLUSTER)
    if row is not None:
        return row.body.decode()
    cluster_id = str(uuid.uuid4())
    table.commit((Put(_CLUSTER, 1, cluster_id.encode(), Expect.ABSENT),))
    return cluster_id
