"""A team deployed on AWS's emulator, without running functions, for tests of restores.

The emulator keeps no history, so that a moment of the table is a backup that was made then.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from control_plane.aws.state_table import DynamoDbTable
from control_plane.state.table import Expect, Key, Put
from infra.aws.names import FUNCTIONS
from infra.aws.program import run
from infra.aws.settings import Settings, parse_settings
from infra.aws.state_restore import restore, restore_lost_objects
from infra.aws.stores import read_stores
from infra.drain_clock import Clock
from infra.restoration import ObjectsReport, RestoreReport, RestoreRequest
from infra.stack_program import Store
from tests.emulators.materialise import EmulatorMaker, materialise
from tests.emulators.ministack import Ministack
from tests.integration.team_stack import team_config

COUNTER = Key("counters", "experiment")
# Calls that change something. After each of them, the restore may be interrupted.
CHANGES = (
    "batch_write_item",
    "delete_function_concurrency",
    "put_function_concurrency",
    "tag_resource",
    "update_continuous_backups",
    "update_event_source_mapping",
    "update_table",
)


class ProcessEnd(Exception):
    """The process of a restore ended."""


class Company:
    """A deployed team whose table has rows, and the clients of the deployer.

    `changes_left`: the changing calls after which the process ends; None for no end. `restored`:
    the backup of each table that was restored from one.
    """

    def __init__(
        self,
        aws: Ministack,
        folder: Path,
        team: str,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.aws = aws
        config = {**team_config(folder), **settings}
        materialise(run, team, config, EmulatorMaker(aws))
        # The policy refuses requests without TLS, and the emulator has no TLS.
        for bucket in aws.client("s3").list_buckets()["Buckets"]:
            if bucket["Name"].startswith(f"detcloud-{team}-"):
                aws.client("s3").delete_bucket_policy(Bucket=bucket["Name"])
        texts = {name.removeprefix("detcloud:"): text for name, text in config.items()}
        self.settings: Settings = parse_settings(team, texts)
        self.lines: list[str] = []
        self.changes_left: int | None = None
        self.changes = 0
        self.restored: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.settings.names.cluster

    @property
    def table(self) -> DynamoDbTable:
        """The state table."""
        return DynamoDbTable(self.aws.client("dynamodb"), self.name)

    def __call__(self, service: str) -> Any:
        return Client(self, self.aws.client(service))

    def count_change(self) -> None:
        self.changes += 1
        if self.changes_left is not None and self.changes > self.changes_left:
            raise ProcessEnd

    def restore(self, request: RestoreRequest) -> RestoreReport:
        """Restore as the command does, under a clock that does not wait."""
        self.changes = 0
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds
            time.sleep(0.01)

        clock = Clock(lambda: now[0], sleep)
        return restore(
            self.settings,
            self,
            request,
            self.lines.append,
            clock,
            lambda name: nullcontext(DynamoDbTable(self.aws.client("dynamodb"), name)),
        )

    def restore_objects(self, moment: datetime | None = None) -> ObjectsReport:
        """Restore lost objects as the command does."""
        return restore_lost_objects(
            self.settings,
            self.aws.client,
            moment,
            self.lines.append,
            lambda name: nullcontext(DynamoDbTable(self.aws.client("dynamodb"), name)),
        )

    def rows(self, table: str = "") -> dict[tuple[str, str], bytes]:
        """Return the bodies of all rows by key."""
        pages = self.aws.client("dynamodb").get_paginator("scan")
        return {
            (item["p"]["S"], item["s"]["S"]): item["b"]["B"]
            for page in pages.paginate(TableName=table or self.name)
            for item in page["Items"]
        }

    def put(self, partition: str, sort: str, body: bytes) -> None:
        self.table.commit((Put(Key(partition, sort), 1, body, Expect.ANYTHING),))

    def backup(self, name: str) -> str:
        """Make a backup of the table, and return its ARN."""
        answer = self.aws.client("dynamodb").create_backup(TableName=self.name, BackupName=name)
        return str(answer["BackupDetails"]["BackupArn"])

    def lose_table(self) -> str:
        """Delete the table, and return the ARN of the backup that AWS makes at the deletion."""
        arn = self.backup(f"{self.name}$DeletedTableBackup")
        self.delete_table()
        return arn

    def delete_table(self) -> None:
        """Delete the table."""
        self.restored.pop(self.name, None)
        self.aws.client("dynamodb").delete_table(TableName=self.name)

    def store(self) -> Store:
        """Return the table as a deployment sees it."""
        stores = read_stores(self.settings.names, self.aws.client)
        assert isinstance(stores, list), stores
        return stores[0]

    def concurrencies(self) -> list[Any]:
        """Return the reserved concurrency of each function; None without a reservation."""
        api = self.aws.client("lambda")
        return [
            api.get_function_concurrency(FunctionName=self.settings.names.part(name)).get(
                "ReservedConcurrentExecutions"
            )
            for name in FUNCTIONS
        ]


class Client:
    """A client of an SDK service that counts the changes of a company.

    As in AWS, the description of a table that was restored from a backup names the backup.
    """

    def __init__(self, company: Company, client: Any) -> None:
        self._company = company
        self._client = client

    def describe_table(self, TableName: str) -> Any:
        answer = self._client.describe_table(TableName=TableName)
        if backup := self._company.restored.get(TableName):
            answer["Table"]["RestoreSummary"] = {"SourceBackupArn": backup}
        return answer

    def restore_table_from_backup(self, BackupArn: str, TargetTableName: str) -> None:
        self._company.count_change()
        self._client.restore_table_from_backup(BackupArn=BackupArn, TargetTableName=TargetTableName)
        self._company.restored[TargetTableName] = BackupArn

    def delete_table(self, TableName: str) -> None:
        self._company.count_change()
        self._client.delete_table(TableName=TableName)
        self._company.restored.pop(TableName, None)

    def __getattr__(self, name: str) -> Any:
        if name in CHANGES:
            self._company.count_change()
        return getattr(self._client, name)


def change(company: Company) -> None:
    """Change the state: a row changes, one ends, one is new, and ids 7 to 9 are used."""
    company.put("data", "a", b"new")
    company.aws.client("dynamodb").delete_item(
        TableName=company.name, Key={"p": {"S": "data"}, "s": {"S": "b"}}
    )
    company.put("data", "d", b"new")
    company.put(*COUNTER, b"10")


def data(company: Company) -> dict[str, bytes]:
    return {sort: body for (partition, sort), body in company.rows().items() if partition == "data"}
