"""The instances of an embedded cluster's pools: agents on this machine, beside the fixed one."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from control_plane.fleet.records import IntentRow
from control_plane.state.table import Conflict, StateTable
from lambdas.local.agent_process import TRIAL_STOP_SECONDS, agent_environment
from lambdas.local.home import HomeFolder
from provisioner.clouds.local.provider import STOP_MS_MAX, LocalProcesses
from provisioner.model import InstanceStatus

# With what follows it still fits into the 20 s that `detcloud down` gives the server.
STOP_SECONDS_MAX = STOP_MS_MAX / 1000 + 1
_POLL_SECONDS = 0.05


class InstanceLauncher:
    """Starts the agents of instances, which call the server at `url`."""

    def __init__(
        self, home: HomeFolder, table: StateTable, url: str, clock: Callable[[], int]
    ) -> None:
        self._home = home
        self._table = table
        self._url = url
        self._clock = clock

    def provider(self, section: str = "{}") -> LocalProcesses:
        """Return the provider of a pool whose settings are `section`, as JSON."""
        return LocalProcesses(
            self._home.folder / "instances",
            self._command,
            self._url,
            self._clock,
            environment=agent_environment(),
            section=section,
        )

    def ask_to_stop(self, cluster_id: str) -> None:
        """Tell every instance of the cluster to end."""
        cloud = self.provider()
        cloud.terminate([instance.id for instance in cloud.list_instances(cluster_id)])

    def wait_for_stop(self, cluster_id: str) -> None:
        """Wait until all instances have ended, for at most 18 s, by which time they are killed."""
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
        command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", self._url]
        command += ["--name", name, "--pool", request.pool, "--work-dir", str(work)]
        command += ["--token-file", str(self._token_file(request.pool))]
        command += ["--stop-seconds", str(TRIAL_STOP_SECONDS)]
        return [*command, "--slots", str(request.offering.slots)]

    def _token_file(self, pool: str) -> Path:
        """Return the file with the pool's join token, which is good from now on."""
        name = f"agent-{pool}.token"
        issue_join_token(self._table, self._home.load_or_create_secret(name), pool)
        return self._home.folder / name


def issue_join_token(table: StateTable, token: str, pool: str) -> None:
    """Register a join token, with which agents may join the pool."""
    with suppress(Conflict):
        holder = Principal(f"agents of {pool}", Role.JOIN, pool)
        table.commit((token_put(token_digest(token), holder),))
