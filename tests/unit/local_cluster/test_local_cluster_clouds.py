"""Tests of the remote accounts of an embedded cluster: the choice, the record and the parts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.config.server_clouds import ServerClouds
from control_plane.errors import RequestError
from control_plane.fleet.records import (
    FleetRow,
    InstanceRow,
    InstanceState,
    IntentRow,
    Market,
    Offering,
    instances_partition,
)
from control_plane.fleet.rows import CLOUDS, FLEETS, encode_row, intents_partition
from control_plane.state.row_ranges import read_rows
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put
from local_cluster.adapters import LOOPBACK, LocalAdapters
from local_cluster.clouds import NO_CLOUDS, CloudsRefused, choose_clouds, load_clouds
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder
from provisioner.clouds.provider import ConfigurationError
from provisioner.model import ProvisionerSettings
from provisioner.settings import encode_settings
from tests.conftest import require
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.config.test_config_server_clouds import AWS, GCP, LAB

OFFERING = Offering("g5/spot", "g5.xlarge", "us-east-1a", Market.SPOT, 1)
POOLS = """
resource_manager: {default_compute_resource_pool: lab, default_aux_resource_pool: lab}
resource_pools: [{pool_name: lab}, {pool_name: spot, provider: {type: aws}}]
"""
STORAGE = "checkpoint_storage: {type: s3, bucket: lab-checkpoints}"


@pytest.fixture
def home(tmp_path: Path) -> HomeFolder:
    return HomeFolder(tmp_path / "home")


@pytest.fixture
def table(home: HomeFolder) -> Iterator[SqliteTable]:
    """The state table of `home`."""
    made = SqliteTable(home.folder / "state.db")
    yield made
    made.close()


def choose(home: HomeFolder, choice: str) -> ServerClouds | None:
    """Make a choice, and return the stored remote accounts."""
    choose_clouds(home, choice)
    return load_clouds(home)


def write(folder: Path, **fields: Any) -> str:
    """Write a file with remote accounts; return its path."""
    path = folder / "clouds.yaml"
    path.write_text(json.dumps({**LAB, **fields}))
    return str(path)


def add_fleet(table: SqliteTable, *rows: InstanceRow | IntentRow) -> None:
    """Store the fleet of the pool `spot` on AWS, with instances and open launches."""
    settings = encode_settings(ProvisionerSettings("aws"))
    fleet = FleetRow("spot", provider=settings)
    puts = [Put(Key(FLEETS, "spot"), 1, encode_row(fleet), Expect.ABSENT)]
    puts.append(Put(Key(CLOUDS, "aws"), 1, settings.encode(), Expect.ABSENT))
    for row in rows:
        partition = (
            instances_partition("spot")
            if isinstance(row, InstanceRow)
            else intents_partition("spot")
        )
        puts.append(Put(Key(partition, row.id), 1, encode_row(row), Expect.ABSENT))
    table.commit(tuple(puts))


INSTANCE = InstanceRow("i-1", "spot", OFFERING, InstanceState.RUNNING, 1, "launch-0")
INTENT = IntentRow("launch-1", "c", "spot", OFFERING, 1, "t", 1)


def test_choice_is_stored_and_removed(home: HomeFolder, table: SqliteTable, tmp_path: Path) -> None:
    assert load_clouds(home) is None
    chosen = choose(home, write(tmp_path))
    assert chosen is not None
    assert load_clouds(home) == chosen
    assert (home.folder / "clouds.json").stat().st_mode & 0o077 == 0
    add_fleet(table)
    assert choose(home, NO_CLOUDS) is None
    assert load_clouds(home) is None
    # No cleanup fails each minute without credentials.
    assert list(read_rows(table, CLOUDS)) == []


@pytest.mark.parametrize("row", [INSTANCE, INTENT])
def test_account_with_instances_or_launches_stays(
    home: HomeFolder, table: SqliteTable, tmp_path: Path, row: InstanceRow | IntentRow
) -> None:
    former = choose(home, write(tmp_path))
    add_fleet(table, row)
    others: list[str | dict[str, Any]] = [
        NO_CLOUDS,
        {"aws": {**AWS, "account": "222222222222"}},
        {"aws": {**AWS, "region": "us-west-2"}},
        {"name": "other"},
        {"aws": None, "gcp": GCP},
    ]
    for other in others:
        choice = other if isinstance(other, str) else write(tmp_path, **other)
        with pytest.raises(CloudsRefused, match=f"pool spot has .*{row.id} on aws: start without"):
            choose(home, choice)
        assert load_clouds(home) == former
    assert choose(home, write(tmp_path, gcp=GCP)) is not None
    assert len(list(read_rows(table, CLOUDS))) == 1


def test_invalid_file_and_damaged_record_are_refused(
    home: HomeFolder, table: SqliteTable, tmp_path: Path
) -> None:
    with pytest.raises(CloudsRefused, match=r"clouds.yaml:1: url: must be an address https"):
        choose(home, write(tmp_path, url="http://lab"))
    with pytest.raises(CloudsRefused, match=r"missing.yaml: cannot be read"):
        choose(home, str(tmp_path / "missing.yaml"))
    (home.folder / "clouds.json").write_text("{}")
    with pytest.raises(CloudsRefused, match=r"clouds.json.*is required"):
        load_clouds(home)


def adapters(home: HomeFolder, tmp_path: Path, **fields: Any) -> LocalAdapters:
    choose_clouds(home, write(tmp_path, **fields))
    return LocalAdapters(home, "http://127.0.0.1:8470")


def test_types_and_hosts_follow_the_remote_accounts(home: HomeFolder, tmp_path: Path) -> None:
    alone = LocalAdapters(home)
    assert alone.provider_types == {"local"}
    assert not alone.distant_types
    assert (alone.api_hosts, alone.cluster_url) == (LOOPBACK, "")
    assert alone.credential_issuer is None
    assert list(alone.instance_notices()) == []
    assert not alone.is_api_down()
    both = adapters(home, tmp_path, gcp=GCP)
    assert both.provider_types == {"local", "aws", "gcp"}
    assert both.distant_types == {"aws", "gcp"}
    assert both.api_hosts == LOOPBACK | {"lab.example.org"}
    with pytest.raises(ConfigurationError, match="has no provider azure"):
        both.cloud_provider(ProvisionerSettings("azure"))


def test_launcher_is_used_only_with_a_principal(home: HomeFolder, tmp_path: Path) -> None:
    principal = "arn:aws:iam::111111111111:user/lab"
    for aws, launcher in (
        (AWS, ""),
        ({**AWS, "principal": principal}, "arn:aws:iam::111111111111:role/detcloud-lab-launcher"),
    ):
        account = json.loads(adapters(home, tmp_path, aws=aws).remote_accounts)["aws"]
        assert account["launcher"] == launcher
        assert account["instance"] == "arn:aws:iam::111111111111:role/detcloud-lab-instance"


def test_verifiers_belong_to_the_clouds(home: HomeFolder, tmp_path: Path) -> None:
    for package in ("botocore", "google.auth", "cryptography"):
        require(package)
    both = adapters(home, tmp_path, gcp=GCP)
    found = [both.find_verifier(kind) for kind in ("aws", "gcp", "local")]
    assert [verifier and verifier.cloud for verifier in found] == ["AWS", "Google Cloud", None]


def test_credentials_for_checkpoints_come_from_the_named_role(
    home: HomeFolder, tmp_path: Path
) -> None:
    role = "arn:aws:iam::111111111111:role/lab-checkpoints"
    issuer = adapters(home, tmp_path, aws={**AWS, "storage_role": role}).credential_issuer
    assert issuer is not None
    assert issuer.store_type == "s3"
    account = "store@acme-ml.iam.gserviceaccount.com"
    gcp = {**GCP, "storage_account": account}
    issuer = adapters(home, tmp_path, aws=None, gcp=gcp).credential_issuer
    assert issuer is not None
    assert issuer.store_type == "gcs"


def test_api_is_down_if_the_public_address_does_not_answer(
    home: HomeFolder, tmp_path: Path
) -> None:
    assert adapters(home, tmp_path, url="http://127.0.0.1:9").is_api_down()


def test_cloud_pool_needs_remote_accounts_and_a_reachable_store(
    home: HomeFolder, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=r"aws is not available .* `detcloud up --clouds FILE`"):
        build_embedded_cluster(home, "me", POOLS)
    choose_clouds(home, write(tmp_path))
    with pytest.raises(RequestError, match="machines of aws cannot reach the checkpoint store"):
        build_embedded_cluster(home, "me", POOLS)
    made = build_embedded_cluster(home, "me", f"{POOLS}{STORAGE}")
    try:
        assert made.own_pool == "lab"
        assert made.adapters.provider_types == {"local", "aws"}
    finally:
        made.table.close()


def test_clouds_are_imported_only_for_a_pool(tmp_path: Path) -> None:
    check = f"""
import sys
from pathlib import Path
from local_cluster.clouds import choose_clouds
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder
home = HomeFolder(Path({str(tmp_path)!r}))
choose_clouds(home, {write(tmp_path)!r})
made = build_embedded_cluster(home, "me")
assert made.adapters.provider_types == {{"local", "aws"}}
made.table.close()
ours = ("botocore", "boto3", "google.auth")
found = [name for name in sys.modules if name.startswith(ours)]
assert not found, found
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{root}:{root / 'harness'}"},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
