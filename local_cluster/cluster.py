"""The life of an embedded cluster on a single machine: server, threads and agent."""

import getpass
import os
import socket
from contextlib import suppress
from pathlib import Path

from control_plane.config.__main__ import read_config
from control_plane.state.table import TableError
from detcloud.shared.version import __version__
from lambdas.clock import now_ms
from local_cluster.agent_process import AgentKeeper, agent_command, kill_former_agent
from local_cluster.embedded_cluster import EmbeddedCluster, build_embedded_cluster, own_agent_name
from local_cluster.home import HomeFolder
from local_cluster.http_server import HOST, EmbeddedServer, configure_logging, open_listener
from local_cluster.provisioning_thread import ProvisioningThread
from local_cluster.tick_thread import TickThread
from local_cluster.tunnel_relay import load_relay

PORT_RECORD = "port"


def serve(
    home: HomeFolder, slots: int | None, port: int | None, config: Path | None = None
) -> None:
    """Run an embedded cluster until SIGTERM or SIGINT, then stop the cluster's agents.

    The caller holds the folder's lock. Logs, the port and the server's address are written to the
    folder; the address is deleted at the end. The machine's own agent is started, unless the
    default pool has a provider.

    Args:
        slots: the number of CPU slots of the own agent. None for slots of the detected devices.
        port: the port to listen on. None for the former port or the next free port.
        config: the path of a cluster configuration to apply first. None to keep the current pools.

    Raises:
        OSError: `port` is not available, or a file cannot be read or written.
        ConfigInvalid: the configuration is invalid.
        RequestError: the configuration cannot be applied.
        HomeInvalid: a file with a secret is invalid.
        TableError: the state table cannot be used.
    """
    configure_logging(home.folder / "server.log")
    # A killed server leaves its record, which would mislead commands.
    home.remove_record("server")
    listener = _open_recorded_listener(home, port)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    home.checkpoints.mkdir(exist_ok=True)
    relay, text = load_relay(home), None if config is None else read_config(str(config))
    embedded = build_embedded_cluster(home, getpass.getuser(), text, url, relay)
    cluster, own_pool = embedded.cluster, embedded.own_pool
    record = {"url": url, "pid": os.getpid(), "started_ms": now_ms(), "version": __version__}
    tick_thread = _build_tick_thread(embedded)
    provisioning_thread = ProvisioningThread(cluster.provisioner)
    launcher, cluster_id = embedded.adapters.launcher, embedded.adapters.cluster_id

    def record_agent(pid: int) -> None:
        home.write_record("server", {**record, "agent_pid": pid})

    command = agent_command(home, url, own_agent_name(own_pool), own_pool, slots)
    agent = AgentKeeper(home, command, record_agent)

    def start() -> None:
        home.write_record("server", {**record, "agent_pid": None})
        tick_thread.start()
        embedded.start_threads()
        if own_pool:
            agent.start()
        else:
            kill_former_agent(home)
        provisioning_thread.start()

    def stop() -> None:
        # The API still answers, because the agents report the exits of the trials.
        provisioning_thread.stop()
        launcher.ask_to_stop(cluster_id)
        agent.stop()
        launcher.wait_for_stop(cluster_id)
        embedded.adapters.long_polls.end_all()

    try:
        EmbeddedServer(embedded.app, start, stop, relay.secret).run(sockets=[listener])
    finally:
        listener.close()
        home.remove_record("server")
        tick_thread.stop()
        embedded.stop_threads()
        with suppress(TableError, OSError):
            embedded.mark.advance()
        embedded.table.close()


def _build_tick_thread(embedded: EmbeddedCluster) -> TickThread:
    """Build the thread of the periodic maintenance. The thread is not started."""
    cluster = embedded.cluster
    calls = cluster.check_alarms, embedded.mark.advance, cluster.export_telemetry
    wake = embedded.delivery_thread.wake
    return TickThread(
        cluster.engine, cluster.collector, *calls, wake, find_services=lambda: cluster.services
    )


def _open_recorded_listener(home: HomeFolder, port: int | None) -> socket.socket:
    """Open the listening socket, and write the port to the record PORT_RECORD.

    Without `port`, prefer the recorded port of the former server. Raises OSError if `port` is not
    available or the record cannot be written.
    """
    former = home.read_record(PORT_RECORD).get("port")
    listener = open_listener(port, former if isinstance(former, int) else None)
    home.write_record(PORT_RECORD, {"port": listener.getsockname()[1]})
    return listener
