"""A cluster on one machine: server, threads and agent, from start to stop."""

import getpass
import os
from contextlib import suppress
from pathlib import Path

from control_plane.config.__main__ import read_config
from control_plane.state.table import TableError
from detcloud.shared.version import __version__
from lambdas.clock import now_ms
from lambdas.local.agent_process import AgentKeeper, agent_command, kill_former_agent
from lambdas.local.embedded_cluster import build_embedded_cluster, own_agent_name
from lambdas.local.home import HomeFolder
from lambdas.local.http_server import HOST, EmbeddedServer, configure_logging, open_listener
from lambdas.local.provisioning_thread import ProvisioningThread
from lambdas.local.tick_thread import TickThread


def serve(
    home: HomeFolder, slots: int | None, port: int | None, config: Path | None = None
) -> None:
    """Serve until a signal; the caller holds the folder's lock. `config` is a cluster configuration
    to be applied first.

    Raises:
        OSError: `port` is taken, or the file cannot be read.
        ConfigInvalid, RequestError: the configuration has problems, or cannot be applied.
    """
    configure_logging(home.folder / "server.log")
    listener = open_listener(port, str(home.read_record("server").get("url", "")))
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    home.checkpoints.mkdir(exist_ok=True)
    text = None if config is None else read_config(str(config))
    embedded = build_embedded_cluster(home, getpass.getuser(), text, url)
    cluster, own_pool = embedded.cluster, embedded.own_pool
    record = {"url": url, "pid": os.getpid(), "started_ms": now_ms(), "version": __version__}
    tick_thread = TickThread(cluster.engine, cluster.collector, embedded.mark.advance)
    provisioning_thread = ProvisioningThread(cluster.provisioner)
    launcher, cluster_id = embedded.adapters.launcher, embedded.adapters.cluster_id

    def record_agent(pid: int) -> None:
        home.write_record("server", {**record, "agent_pid": pid})

    command = agent_command(home, url, own_agent_name(own_pool), own_pool, slots)
    agent = AgentKeeper(home, command, record_agent)

    def start() -> None:
        home.write_record("server", {**record, "agent_pid": None})
        tick_thread.start()
        embedded.suggestion_thread.start()
        if own_pool:
            agent.start()
        else:
            kill_former_agent(home)
        provisioning_thread.start()

    def stop() -> None:
        # The API goes on meanwhile: the trials' exits are still to be reported.
        provisioning_thread.stop()
        launcher.ask_to_stop(cluster_id)
        agent.stop()
        launcher.wait_for_stop(cluster_id)
        embedded.adapters.long_polls.end_all()

    try:
        EmbeddedServer(embedded.app, start, stop).run(sockets=[listener])
    finally:
        home.remove_record("server")
        tick_thread.stop()
        embedded.suggestion_thread.stop()
        with suppress(TableError, OSError):
            embedded.mark.advance()
        embedded.table.close()
