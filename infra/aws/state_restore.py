"""The restore of a cluster's state on AWS.

While the table exists, DynamoDB restores a moment or a backup into a temporary table, and the
differences are copied into the cluster's table (decision 0119). A lost table is restored from a
backup under its own name. Then a new incarnation of the state begins.

A repeated call continues. What has been done is seen in AWS alone: a temporary table belongs to an
unfinished restore, and so does a table that was restored from a backup and lacks the cluster's tag.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import botocore.exceptions as sdk

from control_plane.aws.state_table import DynamoDbTable, create_client
from control_plane.state.table import StateTable, TableError
from detcloud.shared.plurals import count_text
from infra.aws.account_facts import Clients
from infra.aws.exports import find_export, read_export
from infra.aws.function_stops import start_functions, stop_functions
from infra.aws.item_store import TableItems, counter_value
from infra.aws.object_copies import S3Buckets
from infra.aws.settings import Settings
from infra.aws.stores import describe_table
from infra.aws.table_sources import (
    TableSource,
    backup_source,
    is_export,
    moment_source,
    wait_for_table,
)
from infra.drain_clock import Clock
from infra.restoration import (
    ObjectsReport,
    RestoreFailed,
    RestoreReport,
    RestoreRequest,
    Steps,
    show_time,
)
from infra.restored_objects import (
    StackBuckets,
    copy_siblings,
    restore_named_files,
    restore_objects,
)
from infra.restored_state import (
    NOTHING_COPIED,
    OpenTable,
    copy_state,
    copy_text,
    restart_state,
    restore_report,
    wait_until_quiet,
)
from infra.row_copy import CopyReport
from infra.stack_program import Progress
from provisioner.clouds.provider import CLUSTER_TAG


def restore(
    settings: Settings,
    clients: Clients,
    request: RestoreRequest,
    progress: Progress,
    clock: Clock | None = None,
    open_table: OpenTable | None = None,
) -> RestoreReport:
    """Restore the cluster's state, begin a new incarnation, and let the functions run again.

    All functions are stopped first. Each step is reported with its seconds. After an error or a
    crash the functions stay stopped, and the same call continues.

    Args:
        clock: measures and waits; by default the clock of this process.
        open_table: opens a table by name; by default with the environment's credentials.

    Raises:
        RestoreFailed: the request names nothing that can be restored, AWS refused a call, or a
            table could not be written.
    """
    clock = clock or Clock()
    steps = Steps(progress, clock)
    open_table = open_table or partial(_open_table, settings.region)
    cluster = _Cluster(settings, clients, progress, clock, steps, open_table)
    try:
        return cluster.restore(request)
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        raise RestoreFailed(f"AWS refused a request; try again, which continues: {error}") from None
    except (TableError, OSError) as error:
        raise RestoreFailed(
            f"the table {settings.names.cluster}: {error}; try again, which continues"
        ) from None


def restore_lost_objects(
    settings: Settings,
    clients: Clients,
    moment: datetime | None,
    progress: Progress,
    open_table: OpenTable | None = None,
) -> ObjectsReport:
    """Restore the lost objects of a stack's buckets, while the functions run.

    Raise RestoreFailed if a bucket of the stack does not exist, AWS refused a call, or the state
    cannot be read. Then the same call continues.
    """
    open_table = open_table or partial(_open_table, settings.region)
    try:
        with open_table(settings.names.cluster) as table:
            names = bucket_names(settings)
            return restore_objects(S3Buckets(clients), names, table, moment, Steps(progress))
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        raise RestoreFailed(f"AWS refused a request; try again, which continues: {error}") from None


def bucket_names(settings: Settings) -> StackBuckets:
    """Return the names of the buckets and copies of a stack."""
    names, copies = settings.names, settings.copies
    copied = {name: names.copy(name) for name in copies.buckets} if copies else {}
    return StackBuckets(names.objects, names.checkpoints, copied)


def temporary_table(cluster: str, label: str) -> str:
    """Return the name of the temporary table for the source with a label."""
    return f"{cluster}-restoring-{label}"


@dataclass(frozen=True)
class _Cluster:
    """The steps of a restore."""

    settings: Settings
    clients: Clients
    progress: Progress
    clock: Clock
    steps: Steps
    open_table: OpenTable

    @property
    def table(self) -> str:
        """The name of the cluster's table."""
        return self.settings.names.cluster

    def restore(self, request: RestoreRequest) -> RestoreReport:
        """Restore the state that `request` names. Raise as the function `restore`."""
        found = describe_table(self.clients, self.table)
        if found is None or self._is_unfinished(found):
            return self._restore_lost(found, request)
        if is_export(request.source):
            export = find_export(self.clients, request.source)
            self.progress(f"restoring {export.text}")
            with self.steps.step("checking the export"):
                # A damaged file must be found before anything changes.
                items = sum(1 for _ in read_export(self.clients, export))
            self.progress(count_text(items, "row"))
            wait_until_quiet(self.steps, self._stop(), "runs")
            own = self.settings.names
            targets = {"objects": own.objects, "checkpoints": own.checkpoints}
            copy_siblings(S3Buckets(self.clients), export.bucket, targets, self.steps)
            copied = self._copy(read_export(self.clients, export))
            return self._finish(copied, is_new_store=False)
        source = self._choose_source(request)
        self.progress(f"restoring {source.text}")
        self._warn_of_others(source)
        quiet_at = self._stop()
        temporary = self._restore_temporary(source)
        wait_until_quiet(self.steps, quiet_at, "runs")
        copied = self._copy(TableItems(self.clients("dynamodb"), temporary).read())
        return self._finish(copied, is_new_store=False, temporary=temporary)

    def _choose_source(self, request: RestoreRequest) -> TableSource:
        """Return the source of a restore while the table exists.

        Raise RestoreFailed if the request names none or cannot be restored, and the SDK's errors.
        """
        names = self.settings.names
        if request.time is not None:
            return moment_source(names, self.clients, request.time)
        if request.source:
            return backup_source(names, self.clients, request.source)
        raise RestoreFailed(
            f"the table {names.cluster} exists, so nothing was changed: choose what to restore "
            "with --time MOMENT, --from ARN of a backup, or --from s3://BUCKET for an export"
        )

    def _is_unfinished(self, found: Mapping[str, Any]) -> bool:
        """Return whether a table was restored from a backup without finishing. Raise the SDK's
        errors.
        """
        if not found.get("RestoreSummary", {}).get("SourceBackupArn"):
            return False
        pages = self.clients("dynamodb").get_paginator("list_tags_of_resource")
        tags = pages.paginate(ResourceArn=found["TableArn"])
        return not any(tag["Key"] == CLUSTER_TAG for page in tags for tag in page["Tags"])

    def _restore_lost(
        self, found: Mapping[str, Any] | None, request: RestoreRequest
    ) -> RestoreReport:
        """Restore a backup of the lost table under the table's name, or continue to do so.

        Raise RestoreFailed and the SDK's errors.
        """
        names = self.settings.names
        if request.time is not None:
            raise RestoreFailed(
                f"--time is {show_time(request.time)}: the table {self.table} is lost, and with it "
                "its point-in-time recovery; without --time, the newest backup is restored"
            )
        if is_export(request.source):
            raise RestoreFailed(
                f"--from is {request.source}: the table {self.table} does not exist, and an export "
                "is copied into an existing table: create the table with `detcloud deploy aws "
                f"--team {names.team} --new-stores` first"
            )
        begun = found["RestoreSummary"]["SourceBackupArn"] if found else ""
        if begun and request.source and begun != request.source:
            raise RestoreFailed(
                f"--from is {request.source}: the table {self.table} is being restored from "
                f"{begun}; finish with this backup first"
            )
        source = backup_source(names, self.clients, begun or request.source)
        self.progress(f"restoring {source.text} as the table {self.table}")
        quiet_at = self._stop()
        with self.steps.step(f"restoring the table {self.table}"):
            if not found:
                source.start(self.clients("dynamodb"), self.table)
            self._wait(self.table)
        with self.steps.step(f"setting up the table {self.table}"):
            self._set_up()
        wait_until_quiet(self.steps, quiet_at, "runs")
        return self._finish(NOTHING_COPIED, is_new_store=True)

    def _warn_of_others(self, source: TableSource) -> None:
        """Report the temporary tables of other restores that did not finish.

        Raise the SDK's errors, except a refusal to list tables, which is reported.
        """
        start, own = temporary_table(self.table, ""), temporary_table(self.table, source.label)
        try:
            pages = list(self.clients("dynamodb").get_paginator("list_tables").paginate())
        except sdk.ClientError as error:
            self.progress(
                f"warning: temporary tables of other restores were not looked for: {error}"
            )
            return
        for name in (name for page in pages for name in page["TableNames"]):
            if name.startswith(start) and name != own:
                self.progress(
                    f"warning: the temporary table {name} belongs to another restore, which did "
                    "not finish; delete the table, which costs money"
                )

    def _stop(self) -> float:
        """Stop all functions, and return the time of the clock after which no function runs."""
        return self.clock.seconds() + stop_functions(
            self.settings.names, self.clients, self.progress
        )

    def _restore_temporary(self, source: TableSource) -> str:
        """Restore a source into the temporary table, and return the table's name.

        A restore that an earlier call started is continued. Raise the SDK's errors.
        """
        name = temporary_table(self.table, source.label)
        with self.steps.step(f"restoring into the temporary table {name}"):
            if describe_table(self.clients, name) is None:
                source.start(self.clients("dynamodb"), name)
            self._wait(name)
        return name

    def _wait(self, table: str) -> dict[str, Any]:
        """Wait until a table is active, and return the description."""
        text = f"DynamoDB has been restoring {table}"
        return wait_for_table(table, self.clients, self.clock, self.progress, text)

    def _copy(self, source: Any) -> CopyReport:
        """Make the cluster's table equal to `source`, and keep the used ids."""
        with self.steps.step(f"copying the differences into the table {self.table}"):
            items = TableItems(self.clients("dynamodb"), self.table, self.clock.sleep)
            open_table = partial(self.open_table, self.table)
            copied = copy_state(source, items, open_table, counter_value)
        self.progress(copy_text(copied))
        return copied

    def _set_up(self) -> None:
        """Set the stream, the recovery and the protection, which DynamoDB does not restore."""
        dynamodb = self.clients("dynamodb")
        found = self._wait(self.table)
        if not found.get("StreamSpecification", {}).get("StreamEnabled"):
            stream = {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
            dynamodb.update_table(TableName=self.table, StreamSpecification=stream)
            found = self._wait(self.table)
        if found.get("DeletionProtectionEnabled", False) != self.settings.protect:
            dynamodb.update_table(
                TableName=self.table, DeletionProtectionEnabled=self.settings.protect
            )
            self._wait(self.table)
        dynamodb.update_continuous_backups(
            TableName=self.table,
            PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
        )

    def _finish(
        self, copied: CopyReport, *, is_new_store: bool, temporary: str = ""
    ) -> RestoreReport:
        """Begin a new incarnation, remove the temporary table and start the functions."""
        with self.steps.step("beginning a new incarnation"), self.open_table(self.table) as table:
            restarted = restart_state(table, is_new_store=is_new_store, progress=self.progress)
            self._restore_files(table)
        if temporary:
            # Before the start: a later call would copy the temporary table again.
            with self.steps.step(f"deleting the temporary table {temporary}"):
                self._delete(temporary)
        with self.steps.step("starting the functions"):
            start_functions(self.settings, self.clients, self.progress)
        if is_new_store:
            self._tag()
        return restore_report(copied, restarted, is_new_store=is_new_store)

    def _restore_files(self, table: StateTable) -> None:
        """Restore the files of the checkpoints that the state names.

        A refusal by AWS is a warning, because the state is whole without the files.
        """
        names = bucket_names(self.settings)
        try:
            restore_named_files(S3Buckets(self.clients), names, table, self.steps)
        except (sdk.ClientError, sdk.BotoCoreError) as error:
            self.progress(f"warning: the files of checkpoints were not all checked: {error}")

    def _delete(self, table: str) -> None:
        """Delete a table. Return when AWS no longer lists the table."""
        self.clients("dynamodb").delete_table(TableName=table)
        while describe_table(self.clients, table) is not None:
            self.clock.sleep(1.0)

    def _tag(self) -> None:
        """Give the table the tags of the stack, which mark the restore as finished."""
        arn, tags = self.settings.names.table_arn, {**self.settings.tags, CLUSTER_TAG: self.table}
        self.clients("dynamodb").tag_resource(
            ResourceArn=arn, Tags=[{"Key": key, "Value": value} for key, value in tags.items()]
        )


def _open_table(region: str, name: str) -> AbstractContextManager[StateTable]:
    """Open a table of a region with the environment's credentials."""
    return closing(DynamoDbTable(create_client(region), name))
