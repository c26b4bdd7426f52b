"""Servers on own machines whose model code and logs are in a bucket of SeaweedFS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from detcloud.agent.machine.server_access import get
from detcloud.client import Client
from detcloud.client.download import download_model_code
from detcloud.shared import pins
from detcloud.shared.bucket_address import bucket_address
from detcloud.shared.http import ApiError
from detcloud.shared.processes import list_descendants
from detcloud.shared.s3 import Bucket
from local_cluster.certificates import read_pin
from tests.emulators.postgresql import Postgresql
from tests.emulators.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFs
from tests.emulators.server import free_port
from tests.integration.embedded_cluster import EmbeddedCluster, config, environment, model_dir
from tests.integration.server_group import POOL, ServerGroup
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end


@dataclass
class Store:
    """A new bucket, and the file with its credentials."""

    bucket: Bucket
    credentials: Path

    @property
    def options(self) -> list[str]:
        address = bucket_address(self.bucket.place)
        return ["--files", address, "--files-credentials", str(self.credentials)]

    def namespaces(self) -> set[str]:
        return {key.split("/")[0] for key, _ in self.bucket.list_objects("")}


class BucketCluster(EmbeddedCluster):
    """An embedded cluster with its objects in a bucket."""

    def __init__(self, home: Path, store: Store) -> None:
        super().__init__(home)
        self._store = store

    def command(self) -> list[str]:
        return [*super().command(), *self._store.options]


@pytest.fixture
def store(tmp_path: Path, s3: SeaweedFs) -> Store:
    return make_store(tmp_path, s3)


def make_store(folder: Path, s3: SeaweedFs) -> Store:
    credentials = folder / "keys"
    credentials.write_text(
        f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    credentials.chmod(0o600)
    return Store(s3.bucket("of/a lab"), credentials)


@pytest.fixture
def cluster(tmp_path: Path, store: Store) -> Iterator[BucketCluster]:
    cluster = BucketCluster(tmp_path / "home", store)
    yield cluster
    cluster.end()


def run_search(client: Client, folder: Path, **changes: object) -> int:
    """Run a search to its end, and return the id of the experiment."""
    experiment = client.create_experiment({**config(), **changes}, model_dir(folder))
    wait_until(lambda: has_completed(client, experiment.id), what="the completion")
    return experiment.id


def has_completed(client: Client, experiment: int) -> bool:
    return client.experiment(experiment).state == "COMPLETED"


def run_command(home: Path, *words: str, **variables: str) -> str:
    """Run a `detcloud` command with a data folder, and return the output."""
    done = subprocess.run(
        [sys.executable, "-m", "detcloud.cli.main", *words],
        env={**environment(), "DETCLOUD_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fetch_code(client: Client, experiment: int, folder: Path) -> None:
    digest = client.experiment(experiment).code_sha256
    download_model_code(client, digest, folder)


def start_refused(home: Path, options: list[str], **variables: str) -> str:
    """Start a server that ends at once, and return the error."""
    command = [sys.executable, "-P", "-m", "local_cluster", "--home", str(home), *options]
    done = subprocess.run(
        command,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1
    assert SECRET_KEY not in done.stderr
    return done.stderr


def test_search_runs_and_objects_are_in_the_bucket_only(
    cluster: BucketCluster, store: Store, tmp_path: Path
) -> None:
    client = cluster.start()
    experiment = run_search(client, tmp_path / "model")
    [trial, *_] = client.experiment(experiment).trials()
    assert any("stops at 4" in line for line in trial.logs())
    assert "model-code" in store.namespaces()
    assert not (cluster.home / "objects").exists()
    fetch_code(client, experiment, tmp_path / "fetched")
    fetched = (tmp_path / "fetched/train.py").read_text()
    assert fetched == (tmp_path / "model/train.py").read_text()
    code = client.get("/agent-code")
    token = (cluster.home / "token").read_text().strip()
    answer = get(client.url, f"/api/v1/agent-code/{code['sha256']}", token=token)
    assert len(answer.content) == code["size"]
    assert_no_secret(cluster)
    assert cluster.stop() == 0
    archive = str(tmp_path / "backup.tar")
    address = store.options[1]
    assert f"which stay in {address}" in run_command(cluster.home, "backup", archive)
    restored = run_command(tmp_path / "restored", "restore", archive, "--yes")
    assert f"start the server with --files '{address}'" in restored
    # A later start needs no option, and continues with the recorded bucket.
    again = EmbeddedCluster(cluster.home)
    try:
        assert run_search(again.start(), tmp_path / "other") == experiment + 1
    finally:
        again.end()


def assert_no_secret(cluster: EmbeddedCluster) -> None:
    """Check that neither the process list nor the data folder shows the secret key."""
    assert cluster.process is not None
    pids = [cluster.process.pid, *(child.pid for child in list_descendants(cluster.process.pid))]
    for pid in pids:
        for name in ("cmdline", "environ"):
            assert SECRET_KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    for path in cluster.home.rglob("*"):
        if path.is_file():
            assert SECRET_KEY.encode() not in path.read_bytes(), path


def test_store_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, store: Store) -> None:
    home = tmp_path / "home"
    place = store.bucket.place
    [_, address, *credentials] = store.options
    silent = bucket_address(replace(place, endpoint_url=f"http://127.0.0.1:{free_port()}"))
    error = start_refused(home, ["--files", silent, *credentials])
    assert "detcloud server: --files: " in error
    assert "check the network, and whether the store runs" in error
    missing = bucket_address(replace(place, name="no-bucket-here"))
    assert "no-bucket-here" in start_refused(home, ["--files", missing, *credentials])
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": "wrong"}
    assert "check the secret key" in start_refused(home, ["--files", address], **keys)
    store.credentials.chmod(0o644)
    assert "other users can read" in start_refused(home, store.options)
    assert not (home / "files.json").exists()


@pytest.fixture
def group(
    tmp_path: Path, store: Store, postgres: Postgresql, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerGroup]:
    monkeypatch.setattr(pins, "_pins", {})
    ports = free_port(), free_port()
    state = postgres.new_schema()
    with ServerGroup(tmp_path, state, ports, store.options, has_tls=True) as group:
        group.start(0)
        group.start(1)
        group.start_agent()
        yield group


def join_line(group: ServerGroup, home: Path) -> str:
    """Return the line that adds a machine, of a user with the addresses of all servers."""
    assert group.pin is not None
    variables = {"DETCLOUD_URL": group.url, "DETCLOUD_TOKEN": group.token}
    variables |= {"DETCLOUD_PIN": group.pin, "HOME": str(home)}
    return run_command(home, "agent", "join-line", "--pool", POOL, **variables)


def test_servers_of_a_group_share_the_bucket_and_the_certificate(
    group: ServerGroup, store: Store, shared_folder: Path, tmp_path: Path
) -> None:
    line = join_line(group, tmp_path)
    assert f"curl -kfsSL {group.servers[0].url}/api" in line
    assert f"--url {group.url} " in line
    assert f"--pin {group.pin}" in line
    model = model_dir(tmp_path / "code")
    wanted = {**config(), "resources": {"resource_pool": POOL}}
    with pytest.raises(ApiError, match="no common place for checkpoints"):
        group.client(0).create_experiment(wanted, model)
    wanted["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(shared_folder)}
    experiment = group.client(0).create_experiment(wanted, model)
    found = {read_pin(server.home / "server.pem") for server in group.servers}
    assert found == {group.pin}
    # The agent has a single pin, and continues at the other server.
    group.servers[0].kill()
    survivor = group.client(1)
    wait_until(lambda: has_completed(survivor, experiment.id), what="the completion")
    fetch_code(survivor, experiment.id, tmp_path / "fetched")
    assert (tmp_path / "fetched/train.py").exists()
    assert "model-code" in store.namespaces()
    assert not list(tmp_path.glob("home*/objects"))
