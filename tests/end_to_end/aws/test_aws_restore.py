"""Rehearsals of disasters: the state table, files of checkpoints and a bucket are lost."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from control_plane.aws.state_table import DynamoDbTable
from infra.aws.settings import Settings, parse_settings
from infra.aws.state_restore import restore, restore_lost_objects
from infra.aws.stores import STREAM_FUNCTIONS, read_stores, stream_mappings
from infra.drain_clock import Clock
from infra.restoration import FilesReport, RestoreRequest
from tests.emulators.deployment import Account, Deployment, Stack, running, stack
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


def settings_of(team: Stack) -> Settings:
    """Return the settings of a team's stack."""
    texts = {"clusterConfig": "pools.yaml", "adminSha256": "a" * 64, "region": REGION}
    return parse_settings(team.team, {**texts, "account": ACCOUNT})


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


def restore_objects(team: Stack) -> FilesReport:
    """Restore lost objects as the command does, and return the outcome for checkpoints."""
    tables = team.aws.client("dynamodb")
    report = restore_lost_objects(
        settings_of(team),
        team.aws.client,
        None,
        print,
        lambda name: nullcontext(DynamoDbTable(tables, name)),
    )
    return report.checkpoints


def pause(person: Laptop, cluster: Deployment, experiment: int) -> list[str]:
    """Pause an experiment, wait until no run is left, and return the files of checkpoints."""
    trial = trial_of(cluster, experiment)
    person.run("experiment", "pause", experiment)
    wait_until(lambda: person.json("trial", "describe", trial)["allocation"] is None, 60, "no run")
    return sorted(cluster.stored_checkpoints())


@pytest.mark.nightly
def test_experiment_continues_after_the_loss_of_its_files(company: Account, tmp_path: Path) -> None:
    """Somebody deletes all files, and the versions of the bucket bring them back."""
    team = stack(company, "files", POOLS)
    person = Laptop(tmp_path / "home", DETCLOUD_URL=team.url, DETCLOUD_TOKEN=team.token)
    with running(team) as cluster:
        wait_until(lambda: ("pools", POOL) in cluster.rows(), 60, "the configuration in force")
        kept = create(person, 6, tmp_path, batch_seconds=0.15)
        first_checkpoint(cluster, kept)
        stored = pause(person, cluster, kept)
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
