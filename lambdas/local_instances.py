"""The instances of an embedded cluster's pools: agents on this machine, beside the fixed one."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

from control_plane.api.auth import Principal, Role, digest_of
from control_plane.api.token_table import put_token
from control_plane.dispatch.engine import Engine
from control_plane.fleet.records import IntentRow
from control_plane.state.table import Conflict, StateTable
from lambdas.clock import now_ms
from lambdas.home import HomeFolder
from lambdas.local_agent import TRIAL_STOP_SECONDS, agent_environment
from lambdas.provisioning import Provisioning
from provisioner.clouds.local import STOP_MS_MAX, LocalProcesses
from provisioner.clouds.provider import CloudProvider, Misconfigured
from provisioner.demand import EnginePools
from provisioner.model import InstanceStatus, ProvisionerSettings
from provisioner.reconcile import Reconciler
from provisioner.sweep import Sweep

# With what follows it still fits into the 20 s that `detcloud down` gives the server.
STOP_SECONDS_MAX = STOP_MS_MAX / 1000 + 1
_POLL_SECONDS = 0.05


class LocalInstances:
    """Provisions the pools of the cluster `cluster`, whose server is at `url`."""

    def __init__(self, home: HomeFolder, engine: Engine, cluster: str, url: str) -> None:
        self._home = home
        self._engine = engine
        self._cluster = cluster
        self._url = url
        self.pools = EnginePools(engine)
        table = engine.table
        reconciler = Reconciler(table, self.pools, self.cloud, cluster, now_ms, SystemRandom())
        self._provisioning = Provisioning(reconciler, Sweep(table, self.cloud, cluster, now_ms))

    def cloud(self, settings: ProvisionerSettings) -> CloudProvider:
        """See Clouds: there is this machine."""
        if settings.kind != "local":
            text = f"this cluster has no provider {settings.kind}; it has local"
            raise Misconfigured(text)
        return self._processes(settings.section)

    def start(self) -> None:
        """Begins; what an earlier server left is found."""
        self._provisioning.start()

    def ask_to_stop(self) -> None:
        """Ends the provisioning, and tells every instance to end."""
        self._provisioning.stop()
        cloud = self._processes("{}")
        cloud.terminate([it.id for it in cloud.list(self._cluster)])

    def stop(self) -> None:
        """Waits until all have ended, for at most 18 s; what is left then is killed by then."""
        cloud = self._processes("{}")
        until = time.monotonic() + STOP_SECONDS_MAX
        while time.monotonic() < until:
            if all(it.status is InstanceStatus.TERMINATED for it in cloud.list(self._cluster)):
                return
            time.sleep(_POLL_SECONDS)

    def _processes(self, section: str) -> LocalProcesses:
        return LocalProcesses(
            self._home.folder / "instances",
            self._command,
            self._url,
            now_ms,
            environment=agent_environment(),
            section=section,
        )

    def _command(self, name: str, request: IntentRow, work: Path) -> list[str]:
        command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", self._url]
        command += ["--name", name, "--pool", request.pool, "--work-dir", str(work)]
        command += ["--token-file", str(self._token_file(request.pool))]
        command += ["--stop-seconds", str(TRIAL_STOP_SECONDS)]
        return [*command, "--slots", str(request.offering.slots)]

    def _token_file(self, pool: str) -> Path:
        """The pool's join token, which is good from now on."""
        name = f"agent-{pool}.token"
        issue_join_token(self._engine.table, self._home.secret(name), pool)
        return self._home.folder / name


def issue_join_token(table: StateTable, token: str, pool: str) -> None:
    """Lets agents with this token join the pool."""
    with suppress(Conflict):
        holder = Principal(f"agents of {pool}", Role.JOIN, pool)
        table.commit((put_token(digest_of(token), holder),))
