"""The sources of a restored state on AWS: a moment of the table, a backup, or an export in S3."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.instance_ends import error_code
from infra.aws.names import Names
from infra.drain_clock import Clock
from infra.restoration import RestoreFailed, show_time
from infra.stack_program import Progress

# A restore of DynamoDB takes minutes for a small table, and hours for a very large one.
RESTORE_SECONDS_MAX: Final = 6 * 3600.0
LOOK_SECONDS: Final = 5.0
_NO_BACKUP: Final = frozenset({"BackupNotFoundException", "ResourceNotFoundException"})
_EXPORT: Final = "s3://"


@dataclass(frozen=True)
class TableSource:
    """A moment of the table or a backup, which DynamoDB restores into a new table."""

    label: str
    """The part of the name of a temporary table that identifies the source."""
    text: str
    """The source in words."""
    start: Callable[[Any, str], None]
    """Starts the restore into a table with the given name, with the client of DynamoDB."""
    backup: str = ""
    """The ARN of the backup; empty for a moment."""


def is_export(source: str) -> bool:
    """Return whether the name of a source is a place in S3."""
    return source.startswith(_EXPORT)


def moment_source(names: Names, clients: Clients, moment: datetime) -> TableSource:
    """Return the source for a moment of the existing table.

    Raise RestoreFailed if the point-in-time recovery does not cover the moment, and the SDK's
    errors.
    """
    name = names.cluster
    answer = clients("dynamodb").describe_continuous_backups(TableName=name)
    found = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    if found.get("PointInTimeRecoveryStatus") != "ENABLED":
        raise RestoreFailed(
            f"--time: the table {name} has no point-in-time recovery; restore a backup with --from "
            f"({_list_command(name)})"
        )
    first = found.get("EarliestRestorableDateTime", datetime.min.replace(tzinfo=UTC))
    last = found.get("LatestRestorableDateTime", datetime.now(UTC))
    if not first <= moment <= last:
        raise RestoreFailed(
            f"--time is {show_time(moment)}: expected a moment from {show_time(first)} to "
            f"{show_time(last)}, which the recovery of the table {name} covers"
        )

    def start(dynamodb: Any, target: str) -> None:
        dynamodb.restore_table_to_point_in_time(
            SourceTableName=name, TargetTableName=target, RestoreDateTime=moment
        )

    return TableSource(moment.strftime("%Y%m%dT%H%M%SZ"), f"{name} of {show_time(moment)}", start)


def backup_source(names: Names, clients: Clients, arn: str) -> TableSource:
    """Return the source for a backup, or for the newest backup of the cluster's table if `arn` is
    empty.

    A deleted table has a backup that AWS made at the deletion, and keeps for 35 days. Raise
    RestoreFailed if no backup can be restored, and the SDK's errors.
    """
    arn = arn or _newest_backup(names, clients)
    try:
        found = clients("dynamodb").describe_backup(BackupArn=arn)["BackupDescription"]
    except sdk.ClientError as error:
        if error_code(error) not in _NO_BACKUP:
            raise
        raise RestoreFailed(
            f"--from is {arn}: this backup does not exist; {_list_command(names.cluster)} lists "
            "the backups"
        ) from None
    details = found["BackupDetails"]
    if details["BackupStatus"] != "AVAILABLE":
        raise RestoreFailed(
            f"--from is {arn}: the backup is {details['BackupStatus']}; expected AVAILABLE"
        )

    def start(dynamodb: Any, target: str) -> None:
        dynamodb.restore_table_from_backup(BackupArn=arn, TargetTableName=target)

    made = show_time(details["BackupCreationDateTime"])
    text = f"the backup {details['BackupName']} of {made}"
    return TableSource(arn.rpartition("/")[2], text, start, arn)


def wait_for_table(
    name: str, clients: Clients, clock: Clock, progress: Progress, minute_text: str
) -> dict[str, Any]:
    """Wait until a table and the table's indexes are active, and return the description.

    Report `minute_text` each minute. Raise RestoreFailed after RESTORE_SECONDS_MAX, and the SDK's
    errors.
    """
    begun = told = clock.seconds()
    while True:
        table: dict[str, Any] = clients("dynamodb").describe_table(TableName=name)["Table"]
        indexes = [index["IndexStatus"] for index in table.get("GlobalSecondaryIndexes", ())]
        if {table["TableStatus"], *indexes} == {"ACTIVE"}:
            return table
        now = clock.seconds()
        if now - begun > RESTORE_SECONDS_MAX:
            raise RestoreFailed(
                f"the table {name} is {table['TableStatus']} after {RESTORE_SECONDS_MAX / 3600:g} "
                "hours; run the restore again when it is ACTIVE, which continues"
            )
        if now - told >= 60:
            told = now
            progress(f"{minute_text} for {now - begun:.0f} s")
        clock.sleep(LOOK_SECONDS)


def _newest_backup(names: Names, clients: Clients) -> str:
    """Return the ARN of the newest available backup of the cluster's table.

    Raise RestoreFailed if there is none, and the SDK's errors.
    """
    pages = clients("dynamodb").get_paginator("list_backups")
    found = [
        backup
        for page in pages.paginate(TableName=names.cluster, BackupType="ALL")
        for backup in page["BackupSummaries"]
        if backup["BackupStatus"] == "AVAILABLE"
    ]
    if not found:
        raise RestoreFailed(
            f"the table {names.cluster} is lost, and no backup of it exists in {names.region}: AWS "
            "keeps the backup of a deleted table for 35 days; with copies in another region, "
            "restore an export with --from s3://BUCKET (docs/recovery.md)"
        )
    return str(max(found, key=lambda backup: backup["BackupCreationDateTime"])["BackupArn"])


def _list_command(table: str) -> str:
    """Return the command that lists the backups of a table."""
    return f"`aws dynamodb list-backups --table-name {table} --backup-type ALL`"
