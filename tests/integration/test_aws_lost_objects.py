"""Rehearsals of lost objects and buckets on AWS's emulator, without running functions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.aws.stores import read_stores
from infra.restoration import FilesReport, RestoreFailed, RestoreRequest
from tests.emulators.ministack import Ministack, ministack
from tests.integration.aws_company import Company
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster, uuid_of

pytestmark = pytest.mark.end_to_end

COPIES = {"detcloud:copies": '{"region": "us-west-2"}'}
_TEAMS = iter(range(1000))
# The records of the cluster name a file of 8 bytes.
WEIGHTS = b"12345678"


class Rehearsal:
    """A team with an experiment, whose two checkpoints are in the bucket of checkpoints."""

    def __init__(self, company: Company, folder: Path) -> None:
        self.company = company
        self.s3 = company.aws.client("s3")
        self.names = company.settings.names
        self.cluster = CollectionCluster(folder, table=company.table)
        self.cluster.start_experiment(1)
        self.folders = []
        for steps in (10, 20):
            self.cluster.add(1, steps)
            self.folders.append(f"1/1/1/{uuid_of(1, steps)}")
        self.fill(self.names.checkpoints)

    def fill(self, bucket: str) -> None:
        """Write the files of both checkpoints into a bucket."""
        for folder in self.folders:
            self.s3.put_object(Bucket=bucket, Key=f"{folder}/weights", Body=WEIGHTS)
            self.s3.put_object(Bucket=bucket, Key=f"{folder}/manifest.json", Body=b"{}")

    def empty(self, bucket: str) -> None:
        """Delete all current objects of a bucket, as a person does."""
        for content in self.s3.list_objects_v2(Bucket=bucket).get("Contents", ()):
            self.s3.delete_object(Bucket=bucket, Key=content["Key"])

    def lose(self, bucket: str) -> None:
        """Delete a bucket with all versions."""
        listed = self.s3.list_object_versions(Bucket=bucket)
        for entry in (*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())):
            self.s3.delete_object(Bucket=bucket, Key=entry["Key"], VersionId=entry["VersionId"])
        self.s3.delete_bucket(Bucket=bucket)

    def files(self) -> dict[str, Any]:
        listed = self.s3.list_objects_v2(Bucket=self.names.checkpoints).get("Contents", ())
        return {content["Key"]: content["Size"] for content in listed}


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    with ministack(tmp_path_factory.mktemp("objects")) as aws:
        yield aws


@pytest.fixture
def rehearsal(account: Ministack, tmp_path: Path) -> Rehearsal:
    company = Company(account, tmp_path, f"lost{next(_TEAMS)}")
    return Rehearsal(company, tmp_path)


@pytest.fixture
def copied_team(account: Ministack, tmp_path: Path) -> Rehearsal:
    """A team with copies, into which S3 has replicated the objects."""
    made = Rehearsal(Company(account, tmp_path, f"lost{next(_TEAMS)}", COPIES), tmp_path)
    made.fill(made.names.copy("checkpoints"))
    return made


def test_deleted_and_replaced_files_come_back(rehearsal: Rehearsal) -> None:
    before = rehearsal.files()
    first, second = rehearsal.folders
    for name in ("weights", "manifest.json"):
        rehearsal.s3.delete_object(Bucket=rehearsal.names.checkpoints, Key=f"{first}/{name}")
    rehearsal.s3.put_object(
        Bucket=rehearsal.names.checkpoints, Key=f"{second}/weights", Body=b"short"
    )
    report = rehearsal.company.restore_objects()
    assert report.checkpoints == FilesReport(0, (first, second), 3, ())
    assert rehearsal.files() == before
    kept = rehearsal.s3.get_object(Bucket=rehearsal.names.checkpoints, Key=f"{second}/weights")
    assert kept["Body"].read() == WEIGHTS
    assert rehearsal.company.restore_objects().checkpoints == FilesReport(2, (), 0, ())


def test_emptied_bucket_comes_back_from_its_versions(rehearsal: Rehearsal) -> None:
    before = rehearsal.files()
    rehearsal.empty(rehearsal.names.checkpoints)
    assert rehearsal.company.restore_objects().checkpoints.lost == ()
    assert rehearsal.files() == before


def test_lost_bucket_without_copies_names_the_lost_checkpoints(rehearsal: Rehearsal) -> None:
    rehearsal.lose(rehearsal.names.checkpoints)
    stores = read_stores(rehearsal.names, rehearsal.company.aws.client)
    assert isinstance(stores, list)
    assert [store.name for store in stores if not store.exists] == [rehearsal.names.checkpoints]
    with pytest.raises(RestoreFailed, match=r"-checkpoints-.* does not exist: create the bucket"):
        rehearsal.company.restore_objects()
    # A deployment with --new-stores creates the bucket again, empty.
    rehearsal.s3.create_bucket(Bucket=rehearsal.names.checkpoints)
    report = rehearsal.company.restore_objects()
    assert report.checkpoints == FilesReport(0, (), 0, tuple(rehearsal.folders))
    assert any("has no copy (detcloud:copies)" in line for line in rehearsal.company.lines)


def test_lost_bucket_comes_back_from_the_copy(copied_team: Rehearsal) -> None:
    before = copied_team.files()
    copied_team.lose(copied_team.names.checkpoints)
    copied_team.s3.create_bucket(Bucket=copied_team.names.checkpoints)
    report = copied_team.company.restore_objects()
    assert report.checkpoints == FilesReport(0, tuple(copied_team.folders), 4, ())
    assert copied_team.files() == before


def test_lost_bucket_comes_back_from_versions_of_the_emptied_copy(copied_team: Rehearsal) -> None:
    """Whoever deletes a bucket first empties it, and S3 replicates these deletions."""
    copied_team.lose(copied_team.names.checkpoints)
    copied_team.empty(copied_team.names.copy("checkpoints"))
    copied_team.s3.create_bucket(Bucket=copied_team.names.checkpoints)
    assert copied_team.company.restore_objects().checkpoints.restored == tuple(copied_team.folders)


def test_lost_code_comes_back_from_the_copy(copied_team: Rehearsal) -> None:
    code, logs = "model-code/1", "logs/1/1.1/0-4"
    copied_team.s3.put_object(Bucket=copied_team.names.copy("objects"), Key=code, Body=b"old")
    copied_team.s3.put_object(Bucket=copied_team.names.copy("objects"), Key=logs, Body=b"old")
    copied_team.s3.put_object(Bucket=copied_team.names.objects, Key=logs, Body=b"newer")
    assert copied_team.company.restore_objects().objects == 1
    # Objects that exist are not replaced by older copies.
    kept = copied_team.s3.get_object(Bucket=copied_team.names.objects, Key=logs)["Body"].read()
    assert kept == b"newer"


def test_restored_state_gets_its_files_before_the_functions_run(rehearsal: Rehearsal) -> None:
    """The collector deleted a checkpoint since the backup, and the bucket kept the versions."""
    backup = rehearsal.company.backup("monday")
    before = rehearsal.files()
    rehearsal.empty(rehearsal.names.checkpoints)
    rehearsal.company.restore(RestoreRequest(source=backup))
    assert rehearsal.files() == before
    lines = rehearsal.company.lines
    assert "0 checkpoints intact, 2 checkpoints restored (4 files), 0 lost" in lines
    checked = next(n for n, line in enumerate(lines) if line.startswith("checking the checkp"))
    assert checked < next(n for n, line in enumerate(lines) if line.startswith("starting the"))


def test_state_is_restored_without_the_bucket_of_checkpoints(rehearsal: Rehearsal) -> None:
    backup = rehearsal.company.backup("monday")
    rehearsal.lose(rehearsal.names.checkpoints)
    rehearsal.company.restore(RestoreRequest(source=backup))
    assert any("deploy with `--new-stores`" in line for line in rehearsal.company.lines)
    assert set(rehearsal.company.concurrencies()) <= {None, 1, 2}
