"""A cluster on one machine: server, ticker and agent, from start to stop."""

import getpass
import os
from pathlib import Path

from control_plane.config.__main__ import read_config
from detcloud import __version__
from lambdas.clock import now_ms
from lambdas.home import HomeFolder
from lambdas.local_agent import LocalAgent, agent_command, end_former
from lambdas.local_instances import LocalInstances
from lambdas.serving import HOST, EmbeddedServer, listening, log_to
from lambdas.ticker import Ticker
from lambdas.wiring import embedded, own_agent


def serve(
    home: HomeFolder, slots: int | None, port: int | None, config: Path | None = None
) -> None:
    """Serve until a signal; the caller holds the folder's lock. `config` is a cluster configuration
    to be applied first.

    Raises:
        OSError: `port` is taken, or the file cannot be read.
        ConfigInvalid, ApiError: the configuration has problems, or cannot be applied.
    """
    log_to(home.folder / "server.log")
    listener = listening(port, str(home.record("server").get("url", "")))
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    home.checkpoints.mkdir(exist_ok=True)
    text = None if config is None else read_config(str(config))
    cluster = embedded(home, getpass.getuser(), text)
    record = {"url": url, "pid": os.getpid(), "started_ms": now_ms(), "version": __version__}
    ticker = Ticker(cluster.engine, cluster.collector)
    instances = LocalInstances(home, cluster.engine, cluster.cluster_id, url)

    def agent_started(pid: int) -> None:
        home.write_record("server", {**record, "agent_pid": pid})

    command = agent_command(home, url, own_agent(cluster.own_pool), cluster.own_pool, slots)
    agent = LocalAgent(home, command, agent_started)

    def started() -> None:
        home.write_record("server", {**record, "agent_pid": None})
        ticker.start()
        cluster.suggesting.start()
        if cluster.own_pool:
            agent.start()
        else:
            end_former(home)
        instances.start()

    def leave() -> None:
        # The API goes on meanwhile: the trials' exits are still to be reported.
        instances.ask_to_stop()
        agent.stop()
        instances.stop()
        cluster.waiting.close()

    try:
        EmbeddedServer(cluster.app, started, leave).run(sockets=[listener])
    finally:
        home.remove_record("server")
        ticker.stop()
        cluster.suggesting.stop()
        cluster.table.close()
