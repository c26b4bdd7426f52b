"""The builder of an embedded cluster, which runs on a single machine.

The builder adds long polls, a thread for suggestions and the pool of the machine's own agent to the
parts of a cluster.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from fastapi import FastAPI

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import StaticTokens, token_digest
from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.agents.leases import mark_ended_agent
from control_plane.config.pools import check_cluster
from control_plane.engine.engine import Engine
from control_plane.local.state_places import OpenTable, StateInUse
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.queries.pool import load_settings, pool_names
from control_plane.restoration.restart import begin_incarnation
from control_plane.services import Services
from control_plane.state.table import Conflict, Key
from control_plane.usecases.cluster_configuration import apply_configuration, check_configuration
from control_plane.usecases.idempotency import no_extra_writes
from lambdas.builder import Cluster
from local_cluster.adapters import LocalAdapters, PublicPlace
from local_cluster.delivery_thread import DeliveryThread
from local_cluster.home import HomeFolder
from local_cluster.server_group import FIRST_NAME
from local_cluster.state_mark import RESTART_STEP, StateMark
from local_cluster.suggestion_thread import SuggestionThread

log = logging.getLogger(__name__)

# The name of the only pool of a cluster without a configuration.
POOL = "default"


@dataclass(frozen=True)
class EmbeddedCluster:
    """The objects of an embedded cluster's server: adapters, API, table, threads and mark."""

    cluster: Cluster
    adapters: LocalAdapters
    app: FastAPI
    """The API."""
    table: OpenTable
    """The state table."""
    suggestion_thread: SuggestionThread
    """The thread for suggestions, not started yet."""
    delivery_thread: DeliveryThread
    """The thread for the events of webhooks, not started yet."""
    own_pool: str
    """The pool of the machine's own agent, or "" if the machine has no own agent."""
    mark: StateMark
    """The mark that detects older copies of the state."""

    def start_threads(self) -> None:
        """Start the threads for suggestions and events. The threads start only once."""
        self.suggestion_thread.start()
        self.delivery_thread.start()

    def stop_threads(self) -> None:
        """Stop the threads for suggestions and events, and wait for the threads."""
        self.suggestion_thread.stop()
        self.delivery_thread.stop()


def build_embedded_cluster(
    home: HomeFolder,
    user: str,
    config: str | None = None,
    url: str = "",
    relay: TunnelRelay | None = None,
    server: str = FIRST_NAME,
    place: PublicPlace | None = None,
) -> EmbeddedCluster:
    """Build an embedded cluster on the files of `home`, and configure the pools.

    Create the state table and the secrets on first use. If the state is an older copy or another
    cluster's, start a new incarnation of the cluster: all agents are marked as lost, and all trials
    restart. Advance the mark of the state, a number by which a later server detects an older copy.
    Threads are not started.

    Args:
        user: the only user, who gets the role of an admin.
        config: the text of a cluster configuration to apply. None to keep the current pools, or to
            create the pool POOL if no pool exists.
        url: the URL of the server, which the agents of instances call.
        relay: the relay of tunnels, or None for a cluster without tunnels.
        server: the name of the server in the group of servers with a common state.
        place: the public address and the hosts of a server that other machines call, or None.

    Raises:
        ConfigInvalid: the configuration is invalid.
        CloudsRefused: the record of the remote accounts is invalid.
        RequestError: the configuration cannot be applied.
        HomeInvalid: a file with a secret is invalid.
        TableError: the state table cannot be used.
        OSError: a file of `home` cannot be read or written.
    """
    adapters = LocalAdapters(home, url, relay, place)
    cluster = Cluster(adapters)
    mark = StateMark(home, adapters.state_table, adapters.cluster_id)
    _check_state_is_latest(home, mark, cluster.engine)
    suggestion_thread = SuggestionThread(cluster.suggester)
    cluster.engine.on_commit = adapters.long_polls.wake_address
    delivery_thread = DeliveryThread(cluster.deliverer)

    def wake_threads(key: Key) -> None:
        suggestion_thread.wake_on_row(key)
        delivery_thread.wake_on_row(key)

    cluster.engine.on_row = wake_threads
    own_pool = _configure_pools(cluster.services, user, config, server)
    app = cluster.build_app(_file_tokens(home, user, own_pool))
    return EmbeddedCluster(
        cluster,
        adapters,
        app,
        adapters.state_table,
        suggestion_thread,
        delivery_thread,
        own_pool,
        mark,
    )


def _check_state_is_latest(home: HomeFolder, mark: StateMark, engine: Engine) -> None:
    """Start a new incarnation if the state was replaced by an older copy or another cluster's.

    An incarnation is a cluster's life between two replacements of the state. Its start marks all
    agents as lost, so that the trials restart from their latest checkpoints. For an older copy, ids
    are skipped that the newer state may have given. Both cases are logged. Finally advance the mark
    in every case: store a later number in the state and in the mark's file. Raises StateInUse if
    the state was replaced and other servers use it. Raises TableError and OSError.
    """
    step = 1
    is_replaced = mark.is_older_copy() or mark.is_other_cluster()
    if is_replaced and home.state.has_other_servers():
        raise StateInUse(
            f"{home.state.name} has another state than at the last start of this server, and other "
            "servers use the state; stop all servers, and start this server first"
        )
    if mark.is_older_copy():
        # The files of other servers may have higher numbers.
        step = RESTART_STEP
        report = begin_incarnation(engine)
        log.warning(
            "the state is an older copy of this cluster's state: its trials restart "
            "from their latest checkpoints, and the next ids are %s (`detcloud restore` "
            "skips none)",
            dict(report.next_ids),
        )
    elif mark.is_other_cluster():
        begin_incarnation(engine, {})
        log.warning("the state belongs to another cluster than before: its trials restart")
    mark.advance(step)


def _configure_pools(
    services: Services, user: str, config: str | None, server: str = FIRST_NAME
) -> str:
    """Configure the pools, and return the pool of the machine's own agent.

    - With a configuration (YAML), apply it in the name of `user`: configure the named pools and
      remove all others. The own agent is first marked as lost in the removed pools.
    - Without a configuration, create or update the pool POOL if no other pool exists.

    Return the default compute pool, or "" if this pool has a provider or does not exist. Raises
    ConfigInvalid for an invalid configuration, RequestError if a configuration cannot be applied,
    and TableError.
    """
    if config is not None:
        wanted = check_cluster(config)
        removed = [name for name in pool_names(services) if wanted.find_pool(name) is None]
        _end_own_agent(services, removed, server)
        apply_configuration(services, check_configuration(services, wanted), user, no_extra_writes)
    elif pool_names(services) in ([], [POOL]):
        # A pool of an earlier release keeps its settings, except that idle jobs are now stored
        # apart.
        settings = replace(load_settings(services, POOL), stores_idle_jobs_apart=True)
        services.engine.execute_command(addresses.pool(POOL), PoolConfigured(POOL, settings))
    cluster = cluster_config(services)
    name = cluster.resource_manager.default_compute_resource_pool
    pool = cluster.find_pool(name)
    return name if pool is not None and pool.provider is None else ""


def own_agent_name(pool: str, server: str = FIRST_NAME) -> str:
    """Return the name of the machine's own agent in a pool: `local` in the pool POOL.

    In another pool, the name is `local-`, followed by the pool's name. Of several servers with a
    common state, `server` is the name of this server, which takes the place of `local`.
    """
    return server if pool == POOL else f"{server}-{pool}"


def _end_own_agent(services: Services, pools: Iterable[str], server: str) -> None:
    """Mark the own agent of an earlier server as lost in `pools`, and advance each pool.

    Otherwise the agent would prevent the removal of the pools. Skip a pool without a lease of the
    own agent, and an agent whose lease changes meanwhile. Raises TableError.
    """
    engine = services.engine
    for pool in pools:
        # A conflict means that the agent has just called, so it is not left from an earlier server.
        with suppress(Conflict):
            name = own_agent_name(pool, server)
            mark_ended_agent(engine.table, pool, name, engine.clock(), engine.advance_until_idle)


def _file_tokens(home: HomeFolder, user: str, own_pool: str) -> StaticTokens:
    """Return the tokens of the user and of the machine's own agent, from files of `home`.

    The user is an admin; the agent may only join `own_pool`. Missing files are created with random
    tokens. Raises HomeInvalid for an invalid file, and OSError.
    """
    user_token, agent_token = map(home.load_or_create_secret, ("token", "agent.token"))
    return StaticTokens(
        {
            token_digest(user_token): Principal(user, Role.ADMIN),
            token_digest(agent_token): Principal("local agent", Role.JOIN, own_pool),
        }
    )
