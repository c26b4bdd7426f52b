"""The instances of an embedded cluster's pools: agent processes on this machine.

The machine's own agent is not an instance.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from control_plane.fleet.records import IntentRow
from control_plane.state.table import Conflict, StateTable
from local_cluster.agent_process import TRIAL_STOP_SECONDS, agent_environment
from local_cluster.home import HomeFolder
from provisioner.clouds.local.provider import STOP_MS_MAX, LocalProcesses
from provisioner.model import InstanceStatus

# `detcloud down` waits 20 s for the server, and the remaining shutdown takes about a second.
STOP_SECONDS_MAX = STOP_MS_MAX / 1000 + 1
_POLL_SECONDS = 0.05


class InstanceLauncher:
    """The creator of providers that run instances as agent processes on this machine.

    Args:
        home: the folder with the cluster's data.
        table: the state table, which stores the digests of join tokens.
        url: the URL of the server, which the agents call.
        clock: returns the time in epoch ms.
    """

    def __init__(
        self, home: HomeFolder, table: StateTable, url: str, clock: Callable[[], int]
    ) -> None:
        self._home = home
        self._table = table
        self._url = url
        self._clock = clock

    def provider(self, section: str = "{}") -> LocalProcesses:
        """Return a provider of instances on this machine.

        Nothing is started or read. The folder of each instance is in `instances`.

        Args:
            section: the provider's own settings of the pool, as JSON: `instance_slots`. The
                settings are checked when the provider is used.
        """
        return LocalProcesses(
            self._home.folder / "instances",
            self._command,
            self._url,
            self._clock,
            environment=agent_environment(),
            section=section,
        )

    def ask_to_stop(self, cluster_id: str) -> None:
        """Send SIGTERM to the agents of all instances of the cluster, without waiting.

        The request is recorded, so that `wait_for_stop` can kill late instances. Raises OSError.
        """
        cloud = self.provider()
        cloud.terminate([instance.id for instance in cloud.list_instances(cluster_id)])

    def wait_for_stop(self, cluster_id: str) -> None:
        """Wait until all instances of the cluster have ended, for at most STOP_SECONDS_MAX.

        Call `ask_to_stop` first, because this method sends no SIGTERM. An instance that still runs
        STOP_MS_MAX after SIGTERM is killed here. The end of each instance is recorded. Return also
        if an instance is left at the end. Raises OSError if a record cannot be written.
        """
        cloud = self.provider()
        until = time.monotonic() + STOP_SECONDS_MAX
        while time.monotonic() < until:
            if all(
                instance.status is InstanceStatus.TERMINATED
                for instance in cloud.list_instances(cluster_id)
            ):
                return
            time.sleep(_POLL_SECONDS)

    def _command(self, name: str, request: IntentRow, work: Path) -> list[str]:
        """Return the command line of an instance's agent, and store the pool's join token.

        The token's file is created on first use, and the token's digest is stored in the state
        table. Raises HomeInvalid for an invalid token in the folder, TableError and OSError.

        Args:
            name: the name of the agent.
            request: the intent, which names the pool and the slots.
            work: the agent's working folder.
        """
        command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", self._url]
        command += ["--name", name, "--pool", request.pool, "--work-dir", str(work)]
        command += ["--token-file", str(self._token_file(request.pool))]
        command += ["--stop-seconds", str(TRIAL_STOP_SECONDS)]
        return [*command, "--slots", str(request.offering.slots)]

    def _token_file(self, pool: str) -> Path:
        """Return the file with the pool's join token, and store the token's digest in the state
        table.

        Create the file with a random token on first use. A digest that is stored already stays.
        Raises HomeInvalid if the file contains no valid token, TableError and OSError.
        """
        name = f"agent-{pool}.token"
        issue_join_token(self._table, self._home.load_or_create_secret(name), pool)
        return self._home.folder / name


def issue_join_token(table: StateTable, token: str, pool: str) -> None:
    """Store the digest of a join token in the state table, so that agents can join the pool with
    the token.

    Do nothing if the digest is stored already: the token then keeps its pool. Raises TableError.
    """
    with suppress(Conflict):
        holder = Principal(f"agents of {pool}", Role.JOIN, pool)
        table.commit((token_put(token_digest(token), holder),))
