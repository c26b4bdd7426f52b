"""Rehearsals of disasters: the state table, files of checkpoints and a bucket are lost."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from control_plane.aws.state_table import DynamoDbTable
from infra.aws.settings import Settings, parse_settings
from infra.aws.state_restore import restore, restore_lost_objects
from infra.aws.stores import STREAM_FUNCTIONS, read_stores, stream_mappings
from infra.drain_clock import Clock
from infra.restoration import FilesReport, RestoreRequest
from tests.emulators.deployment import Account, Stack, running, stack
from tests.emulators.ministack import ACCOUNT, REGION
from tests.end_to_end.aws.cluster import POOLS
from tests.end_to_end.cluster_steps import (
    KEEP_ALL,
    POOL,
    create,
    first_checkpoint,
    status_of,
    steps_kept,
    trial_of,
    wait_for,
    wait_until,
)
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.lost_bucket import pause, rehearse_loss_of_bucket

# The fields that AWS returns of a mapping, and that its creation takes.
_MAPPED = (
    "BatchSize",
    "BisectBatchOnFunctionError",
    "DestinationConfig",
    "FilterCriteria",
    "FunctionResponseTypes",
    "MaximumBatchingWindowInSeconds",
    "MaximumRecordAgeInSeconds",
    "MaximumRetryAttempts",
)


@pytest.fixture
def team(company: Account) -> Stack:
    """The stack of a team that loses its state."""
    return stack(company, "rescue", POOLS)


def settings_of(team: Stack, **more: str) -> Settings:
    """Return the settings of a team's stack."""
    texts = {"clusterConfig": "pools.yaml", "adminSha256": "a" * 64, "region": REGION}
    return parse_settings(team.team, {**texts, "account": ACCOUNT, **more})


def restore_now(team: Stack, request: RestoreRequest) -> list[str]:
    """Restore the state as the command does, without waiting for running functions to end."""
    lines: list[str] = []
    clock = Clock(time.monotonic, lambda seconds: time.sleep(min(seconds, 0.2)))
    tables = team.aws.client("dynamodb")
    restore(
        settings_of(team),
        team.aws.client,
        request,
        lines.append,
        clock,
        lambda name: nullcontext(DynamoDbTable(tables, name)),
    )
    return lines


def connect_again(team: Stack) -> None:
    """Replace the mappings of the former stream, as a deployment with a refresh does."""
    names, api = settings_of(team).names, team.aws.client("lambda")
    table = team.aws.client("dynamodb").describe_table(TableName=names.cluster)["Table"]
    for function in STREAM_FUNCTIONS:
        for mapping in stream_mappings(names, team.aws.client, function):
            api.create_event_source_mapping(
                EventSourceArn=table["LatestStreamArn"],
                FunctionName=mapping["FunctionArn"],
                StartingPosition="TRIM_HORIZON",
                Enabled=False,
                **{field: mapping[field] for field in _MAPPED if mapping.get(field)},
            )
            api.delete_event_source_mapping(UUID=mapping["UUID"])


def table_store(team: Stack) -> Any:
    """Return the table as a deployment sees it."""
    stores = read_stores(settings_of(team).names, team.aws.client)
    assert isinstance(stores, list), stores
    return stores[0]


@pytest.mark.nightly
def test_experiment_continues_after_the_loss_of_the_table(team: Stack, tmp_path: Path) -> None:
    tables, name = team.aws.client("dynamodb"), team.outputs["table"]
    person = Laptop(tmp_path / "home", DETCLOUD_URL=team.url, DETCLOUD_TOKEN=team.token)
    with running(team) as cluster:
        wait_until(lambda: ("pools", POOL) in cluster.rows(), 60, "the configuration in force")
        kept = create(person, 6, tmp_path, batch_seconds=0.15, settings=(KEEP_ALL,))
        trial = first_checkpoint(cluster, kept)
        tables.create_backup(TableName=name, BackupName=f"{name}$DeletedTableBackup")
        lost = create(person, 6, tmp_path)
        assert trial_of(cluster, kept) == trial
    tables.update_table(TableName=name, DeletionProtectionEnabled=False)
    tables.delete_table(TableName=name)
    assert not table_store(team).exists

    print("\n".join(restore_now(team, RestoreRequest())))
    assert "its stream does not invoke" in table_store(team).trouble
    connect_again(team)

    with running(team) as cluster:
        described = wait_for(cluster, person, kept)
        assert described["id"] == trial
        # The restore is a loss, not a failure. A busy machine may add further losses.
        assert described["restarts"] == 0
        assert described["losses"] >= 1
        assert described["steps_completed"] == described["target_steps"]
        # The run after the restore began from a checkpoint of the run before.
        epochs = range(1, described["losses"] + 2)
        first, *others = filter(None, (steps_kept(cluster, trial, epoch) for epoch in epochs))
        assert min(steps[0] for steps in others) > first[0]
        with cluster.client() as client:
            assert status_of(lambda: client.experiment(lost)) == 404
        # No id since the backup is used again.
        assert create(person, 1, tmp_path) > 1000
        wait_until(lambda: not cluster.billed_instances(), 90, "no instance without work")


def restore_objects(team: Stack, **more: str) -> FilesReport:
    """Restore lost objects as the command does, and return the outcome for checkpoints."""
    tables = team.aws.client("dynamodb")
    report = restore_lost_objects(
        settings_of(team, **more),
        team.aws.client,
        None,
        print,
        lambda name: nullcontext(DynamoDbTable(tables, name)),
    )
    return report.checkpoints


@pytest.mark.nightly
def test_experiment_continues_after_the_loss_of_its_files(company: Account, tmp_path: Path) -> None:
    """Somebody deletes all files, and the versions of the bucket bring them back."""
    team = stack(company, "files", POOLS)
    person = Laptop(tmp_path / "home", DETCLOUD_URL=team.url, DETCLOUD_TOKEN=team.token)
    with running(team) as cluster:
        wait_until(lambda: ("pools", POOL) in cluster.rows(), 60, "the configuration in force")
        kept = create(person, 6, tmp_path, batch_seconds=0.15)
        first_checkpoint(cluster, kept)
        pause(cluster, person, kept)
        stored = sorted(cluster.stored_checkpoints())
        for key in stored:
            team.aws.client("s3").delete_object(Bucket=team.outputs["checkpoints"], Key=key)
        report = restore_objects(team)
        assert report.files
        assert report.lost == ()
        # Files of checkpoints, and the trial's TensorBoard files.
        assert sorted(cluster.stored_checkpoints()) == stored
        person.run("experiment", "activate", kept)
        assert wait_for(cluster, person, kept)["restarts"] == 0
        wait_until(lambda: not cluster.billed_instances(), 90, "no instance without work")


COPIES = '{"region": "us-west-2"}'


class CopiedBucket:
    """The bucket of checkpoints of a team with copies."""

    def __init__(self, team: Stack) -> None:
        self._team = team
        self._s3 = team.aws.client("s3")
        self._name = team.outputs["checkpoints"]
        self._copy = settings_of(team, copies=COPIES).names.copy("checkpoints")
        # The policy refuses requests without TLS, and the emulator has no TLS.
        self._s3.delete_bucket_policy(Bucket=self._copy)

    def lose(self) -> None:
        wait_until(self._is_gone, 60, "the end of the bucket")

    def _is_gone(self) -> bool:
        """Copy and delete all versions, and delete the bucket. Return False if a trial wrote an
        object meanwhile.
        """
        for page in self._s3.get_paginator("list_object_versions").paginate(Bucket=self._name):
            for entry in page.get("Versions", ()):
                place = {"Key": entry["Key"], "VersionId": entry["VersionId"]}
                source = {"Bucket": self._name, **place}
                self._s3.copy_object(Bucket=self._copy, Key=entry["Key"], CopySource=source)
                self._s3.delete_object(Bucket=self._name, **place)
            for entry in page.get("DeleteMarkers", ()):
                place = {"Key": entry["Key"], "VersionId": entry["VersionId"]}
                self._s3.delete_object(Bucket=self._name, **place)
        try:
            self._s3.delete_bucket(Bucket=self._name)
        except ClientError as error:
            if error.response["Error"]["Code"] != "BucketNotEmpty":
                raise
            return False
        return True

    def create(self) -> None:
        self._s3.create_bucket(Bucket=self._name)

    def restore(self) -> FilesReport:
        return restore_objects(self._team, copies=COPIES)


@pytest.mark.nightly
def test_trials_survive_the_loss_of_the_bucket(company: Account, tmp_path: Path) -> None:
    team = stack(company, "bucket", POOLS, {"detcloud:copies": COPIES})
    person = Laptop(tmp_path / "home", DETCLOUD_URL=team.url, DETCLOUD_TOKEN=team.token)
    with running(team) as cluster:
        wait_until(lambda: ("pools", POOL) in cluster.rows(), 60, "the configuration in force")

        def begin(folder: Path) -> int:
            return create(person, 8, folder, batch_seconds=0.15, settings=(KEEP_ALL,))

        rehearse_loss_of_bucket(cluster, person, CopiedBucket(team), begin, tmp_path)
        wait_for(cluster, person, create(person, 1, tmp_path))
        wait_until(lambda: not cluster.billed_instances(), 90, "no instance without work")
