"""One cluster on Google Cloud's emulators for all tests of this folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.emulators.cloud_run import CloudRunCluster, cloud_run
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import Firestore
from tests.emulators.server import serving
from tests.end_to_end.laptop import Laptop, environment
from tests.patience import wait_until

# Its agent is started by hand, with a token.
POOL = "desk"
POOLS = f"""
resource_manager: {{default_compute_resource_pool: {POOL}, default_aux_resource_pool: {POOL}}}
resource_pools:
  - pool_name: {POOL}
"""


@pytest.fixture(scope="package")
def cluster(
    firestore: Firestore, gcs_server: FakeGcs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CloudRunCluster]:
    """A cluster with one agent of one slot."""
    require("cryptography")
    folder = tmp_path_factory.mktemp("cloud-run")
    with cloud_run(firestore, gcs_server, folder, POOLS) as made:
        wait_until(lambda: made.table.query("pools", " ", "~").rows, 60, "the configuration")
        with made.client() as client:
            token = client.create_token(role="join", resource_pool=POOL).token
        secret = folder / "token"
        secret.write_text(str(token))
        command: list[str | Path] = [sys.executable, "-P", "-m", "detcloud.agent"]
        command += ["--url", made.url, "--token-file", secret, "--name", "desk-1", "--pool", POOL]
        command += ["--work-dir", folder / "agent", "--slots", "1", "--stop-seconds", "2"]

        def has_joined() -> None:
            with made.client() as client:
                if not client.agents():
                    raise OSError("no agent yet")

        log = folder / "agent.log"
        with serving(command, has_joined, log, environment(folder / "home")):
            yield made


@pytest.fixture
def person(cluster: CloudRunCluster, tmp_path: Path) -> Laptop:
    """Somebody with the `detcloud` command and the administrator's token."""
    variables = {"DETCLOUD_URL": cluster.url, "DETCLOUD_TOKEN": cluster.token}
    return Laptop(tmp_path / "home", **variables)
