"""An embedded cluster: a cluster's parts on one machine, and what a server adds: held calls, a
thread for suggestions, and the pool of the machine's own agent.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from fastapi import FastAPI

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import StaticTokens, token_digest
from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.agents.leases import mark_ended_agent
from control_plane.config.pools import check_cluster
from control_plane.engine.engine import Engine
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.queries.pool import load_settings, pool_names
from control_plane.restoration.restart import begin_incarnation
from control_plane.services import Services
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict
from control_plane.usecases.cluster_configuration import apply_configuration, check_configuration
from control_plane.usecases.idempotency import no_extra_writes
from lambdas.builder import Cluster
from lambdas.local.adapters import LocalAdapters
from lambdas.local.home import HomeFolder
from lambdas.local.state_mark import StateMark
from lambdas.local.suggestion_thread import SuggestionThread

log = logging.getLogger(__name__)

# The pool of a cluster that nobody has configured.
POOL = "default"


@dataclass(frozen=True)
class EmbeddedCluster:
    """The parts of an embedded cluster's server. `own_pool`: which pool the machine's own agent
    belongs to, "" for none.
    """

    cluster: Cluster
    adapters: LocalAdapters
    app: FastAPI
    table: SqliteTable
    suggestion_thread: SuggestionThread
    own_pool: str
    mark: StateMark


def build_embedded_cluster(
    home: HomeFolder, user: str, config: str | None = None, url: str = ""
) -> EmbeddedCluster:
    """Build a cluster on the files of `home`, whose only user is `user`.

    Its pools are those of the cluster configuration `config`; without one it keeps the pools that
    it has, or gets one. `url` is the server's.

    Raises:
        ConfigInvalid: the configuration has problems.
        RequestError: it cannot be applied.
    """
    adapters = LocalAdapters(home, url)
    cluster = Cluster(adapters)
    mark = StateMark(home, adapters.state_table, adapters.cluster_id)
    _check_state_is_latest(mark, cluster.engine)
    suggestion_thread = SuggestionThread(cluster.suggester)
    cluster.engine.on_commit = adapters.long_polls.wake_address
    cluster.engine.on_row = suggestion_thread.wake_on_row
    own_pool = _configure_pools(cluster.services, user, config)
    app = cluster.build_app(_file_tokens(home, user, own_pool))
    return EmbeddedCluster(
        cluster, adapters, app, adapters.state_table, suggestion_thread, own_pool, mark
    )


def _check_state_is_latest(mark: StateMark, engine: Engine) -> None:
    """Make a state safe to be used that somebody put in the place of a newer one."""
    if mark.is_older_copy():
        report = begin_incarnation(engine)
        log.warning(
            "state.db is an older copy of this cluster's state: its trials restart "
            "from their latest checkpoints, and the next ids are %s (`detcloud restore` "
            "skips none)",
            dict(report.next_ids),
        )
    elif mark.is_other_cluster():
        begin_incarnation(engine, {})
        log.warning("state.db belongs to another cluster than before: its trials restart")
    mark.advance()


def _configure_pools(services: Services, user: str, config: str | None) -> str:
    """Ensure that there are pools, and return the pool of the machine's own agent.

    That is the default pool, or "" if the default pool launches its agents itself.
    """
    if config is not None:
        wanted = check_cluster(config)
        _end_own_agent(
            services, [name for name in pool_names(services) if wanted.find_pool(name) is None]
        )
        apply_configuration(services, check_configuration(services, wanted), user, no_extra_writes)
    elif pool_names(services) in ([], [POOL]):
        # What an earlier release configured keeps its settings, and its idle jobs apart from now
        # on.
        settings = replace(load_settings(services, POOL), idle_apart=True)
        services.engine.execute_command(addresses.pool(POOL), PoolConfigured(POOL, settings))
    cluster = cluster_config(services)
    name = cluster.resource_manager.default_compute_resource_pool
    pool = cluster.find_pool(name)
    return name if pool is not None and pool.provider is None else ""


def own_agent_name(pool: str) -> str:
    """Return the name of the machine's own agent in a pool."""
    return "local" if pool == POOL else f"local-{pool}"


def _end_own_agent(services: Services, pools: Iterable[str]) -> None:
    """Take the own agent of an earlier server out of these pools: it is not to keep them from being
    removed.
    """
    engine = services.engine
    for pool in pools:
        # One that has spoken just now is still running, and is no agent of an earlier server.
        with suppress(Conflict):
            mark_ended_agent(
                engine.table, pool, own_agent_name(pool), engine.clock(), engine.advance_until_idle
            )


def _file_tokens(home: HomeFolder, user: str, own_pool: str) -> StaticTokens:
    """Return the tokens that are in files of `home`: the user's and the own agent's."""
    user_token, agent_token = map(home.load_or_create_secret, ("token", "agent.token"))
    return StaticTokens(
        {
            token_digest(user_token): Principal(user, Role.ADMIN),
            token_digest(agent_token): Principal("local agent", Role.JOIN, own_pool),
        }
    )
