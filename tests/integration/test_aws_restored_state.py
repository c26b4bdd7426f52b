"""The restore of a cluster's state on AWS's emulator, without running functions.

The emulator keeps no history, so that a moment of the table is a backup that was made then.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from control_plane.actors.messages.pool import PoolConfigured
from control_plane.aws.state_table import DynamoDbTable
from control_plane.engine.engine import Engine
from control_plane.restoration.incarnation import read_incarnation
from control_plane.restoration.restart import SKIPPED_IDS, read_next_ids
from control_plane.state.table import Expect, Key, Put
from infra.aws.names import FUNCTIONS
from infra.aws.program import run
from infra.aws.settings import Settings, parse_settings
from infra.aws.state_restore import restore, temporary_table
from infra.aws.stores import read_stores, stream_mappings
from infra.drain_clock import Clock
from infra.restoration import RestoreFailed, RestoreReport, RestoreRequest
from infra.stack_program import Store
from tests.emulators.materialise import EmulatorMaker, materialise
from tests.emulators.ministack import Ministack, ministack
from tests.emulators.table_exports import export_table
from tests.engine_timing import UNHURRIED
from tests.integration.team_stack import team_config

pytestmark = pytest.mark.end_to_end

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


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    with ministack(tmp_path_factory.mktemp("restore")) as aws:
        yield aws


_TEAMS = iter(range(1000))


@pytest.fixture
def company(account: Ministack, tmp_path: Path) -> Company:
    """A team with a pool, the rows `a` to `c`, and 7 as the next id of experiments."""
    made = Company(account, tmp_path, f"team{next(_TEAMS)}")
    Engine(made.table, lambda: 1, UNHURRIED).execute_command(
        "pool#default", PoolConfigured("default")
    )
    for sort in "abc":
        made.put("data", sort, b"old")
    made.put(*COUNTER, b"7")
    return made


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


OLD = {"a": b"old", "b": b"old", "c": b"old"}


def test_backup_replaces_the_rows_of_an_existing_table(company: Company) -> None:
    arn = company.backup("monday")
    stream = company.aws.client("dynamodb").describe_table(TableName=company.name)
    change(company)
    report = company.restore(RestoreRequest(source=arn))
    assert data(company) == OLD
    # a differs, b is missing, d must go, and c and the rows of the pool are equal.
    assert (report.written, report.deleted, report.is_new_store) == (2, 1, False)
    assert read_incarnation(company.table, "before") == report.incarnation
    # The table, its stream and the connection to the functions stay.
    after = company.aws.client("dynamodb").describe_table(TableName=company.name)
    assert after["Table"]["LatestStreamArn"] == stream["Table"]["LatestStreamArn"]
    assert company.store().trouble == ""
    assert set(company.concurrencies()) <= {None, 1, 2}
    assert company.name in company.aws.client("dynamodb").list_tables()["TableNames"]
    temporary = temporary_table(company.name, arn.rpartition("/")[2])
    assert temporary not in company.aws.client("dynamodb").list_tables()["TableNames"]


def test_used_ids_are_not_used_again(company: Company) -> None:
    arn = company.backup("monday")
    change(company)
    company.restore(RestoreRequest(source=arn))
    # The table still had the ids of the lost state, so no id is skipped.
    assert read_next_ids(company.table)["experiment"] == 10


def test_ids_are_skipped_if_the_counters_were_lost(company: Company) -> None:
    arn = company.backup("monday")
    company.aws.client("dynamodb").delete_item(
        TableName=company.name, Key={"p": {"S": COUNTER.partition}, "s": {"S": COUNTER.sort}}
    )
    for _ in range(2):
        company.restore(RestoreRequest(source=arn))
        assert read_next_ids(company.table)["experiment"] == 7 + SKIPPED_IDS["experiment"]


def test_lost_table_is_restored_from_the_newest_backup(company: Company) -> None:
    company.backup("older")
    change(company)
    company.put("data", "a", b"newest")
    time.sleep(0.01)
    company.lose_table()
    assert not company.store().exists
    report = company.restore(RestoreRequest())
    assert data(company) == {"a": b"newest", "c": b"old", "d": b"new"}
    assert report.is_new_store
    assert read_next_ids(company.table)["experiment"] == 10 + SKIPPED_IDS["experiment"]
    found = company.aws.client("dynamodb").describe_table(TableName=company.name)["Table"]
    assert found["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
    assert set(company.concurrencies()) <= {None, 1, 2}


def test_restored_table_has_another_stream_than_the_functions_read(company: Company) -> None:
    """A deployment without a refresh would change nothing, because Pulumi knows the old stream."""
    company.lose_table()
    company.restore(RestoreRequest())
    stream = company.aws.client("dynamodb").describe_table(TableName=company.name)["Table"]
    mapped = stream_mappings(company.settings.names, company.aws.client, "advance")
    assert [mapping["EventSourceArn"] == stream["LatestStreamArn"] for mapping in mapped] == [False]
    assert company.store().trouble == (
        f"its stream does not invoke {company.name}-advance and {company.name}-wake; connecting it "
        "again"
    )


@pytest.mark.parametrize("is_lost", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_restore_continues_after_an_interruption_at_each_change(
    is_lost: bool, company: Company
) -> None:
    """No function runs before the state is whole."""
    interrupted = 0
    while True:
        for sort in "abc":
            company.put("data", sort, b"old")
        company.put(*COUNTER, b"7")
        company.aws.client("dynamodb").delete_item(
            TableName=company.name, Key={"p": {"S": "data"}, "s": {"S": "d"}}
        )
        arn = company.backup("monday")
        change(company)
        if is_lost:
            company.delete_table()
        company.changes_left = interrupted
        try:
            company.restore(RestoreRequest(source=arn))
            break
        except ProcessEnd:
            company.changes_left = None
        # All functions are stopped, or none was stopped yet, or the state is whole.
        stopped = [limit == 0 for limit in company.concurrencies()]
        assert all(stopped) or interrupted < len(stopped) + 2 or data(company) == OLD
        company.restore(RestoreRequest(source=arn))
        assert data(company) == OLD
        # 7 is the copy's counter, and 10 that of the lost state.
        least = 7 + SKIPPED_IDS["experiment"] if is_lost else 10
        assert read_next_ids(company.table)["experiment"] >= least
        assert company.store().refusal == ""
        names = company.aws.client("dynamodb").list_tables()["TableNames"]
        assert [name for name in names if name.startswith(f"{company.name}-")] == []
        interrupted += 1
    assert interrupted > 10


COPIES = {"detcloud:copies": '{"region": "us-west-2"}'}


def test_copies_in_another_region_start_a_cluster_there(account: Ministack, tmp_path: Path) -> None:
    """The region of the first cluster is lost: only the copies in the other region are used."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = Company(account, tmp_path / "first", "east", COPIES)
    names, s3 = first.settings.names, account.client("s3")
    first.put("data", "a", b"old")
    first.put(*COUNTER, b"7")
    s3.put_object(Bucket=names.objects, Key="code/1", Body=b"code")
    s3.put_object(Bucket=names.checkpoints, Key="1/1/1/x/manifest.json", Body=b"weights")
    s3.put_object(Bucket=names.checkpoints, Key="1/1/1/y/manifest.json", Body=b"deleted")
    s3.delete_object(Bucket=names.checkpoints, Key="1/1/1/y/manifest.json")
    export_table(account, first.name, names.state_copy)
    (schedule,) = account.client("scheduler").list_schedules(NamePrefix=first.name)["Schedules"]
    target = account.client("scheduler").get_schedule(Name=schedule["Name"])["Target"]
    assert json.loads(target["Input"])["S3Bucket"] == names.state_copy

    second = Company(account, tmp_path / "second", "west")
    second.put("data", "z", b"of the empty cluster")
    report = second.restore(RestoreRequest(source=f"s3://{names.state_copy}"))
    assert data(second) == {"a": b"old"}
    assert (report.is_new_store, read_incarnation(second.table, "")) == (False, report.incarnation)
    assert read_next_ids(second.table)["experiment"] == 7 + SKIPPED_IDS["experiment"]
    own = second.settings.names
    kept = s3.get_object(Bucket=own.checkpoints, Key="1/1/1/x/manifest.json")["Body"].read()
    assert kept == b"weights"
    listed = s3.list_objects_v2(Bucket=own.checkpoints)["Contents"]
    assert [content["Key"] for content in listed] == ["1/1/1/x/manifest.json"]
    assert s3.get_object(Bucket=own.objects, Key="code/1")["Body"].read() == b"code"
    # A repeated restore copies no object again.
    second.lines.clear()
    second.restore(RestoreRequest(source=f"s3://{names.state_copy}"))
    assert "0 objects copied, 1 unchanged" in second.lines


def test_damaged_export_is_refused(account: Ministack, company: Company) -> None:
    bucket = f"{company.name}-exports"
    account.client("s3").create_bucket(Bucket=bucket)
    folder = export_table(account, company.name, bucket).removeprefix(f"s3://{bucket}/")
    account.client("s3").put_object(Bucket=bucket, Key=f"{folder}data/1.json.gz", Body=b"damaged")
    with pytest.raises(RestoreFailed, match=r"data/1.json.gz is damaged: its MD5 is not"):
        company.restore(RestoreRequest(source=f"s3://{bucket}"))
    assert company.changes == 0


def test_unfinished_export_is_refused(account: Ministack, company: Company) -> None:
    bucket = f"{company.name}-exports"
    account.client("s3").create_bucket(Bucket=bucket)
    account.client("s3").put_object(Bucket=bucket, Key="AWSDynamoDB/01-a/_started", Body=b"")
    with pytest.raises(RestoreFailed, match="an export that is still written has none yet"):
        company.restore(RestoreRequest(source=f"s3://{bucket}"))
    assert company.changes == 0


def test_refuses_a_restore_of_an_existing_table_without_a_source(company: Company) -> None:
    with pytest.raises(RestoreFailed, match="exists, so nothing was changed: choose what to"):
        company.restore(RestoreRequest())
    assert company.changes == 0


def test_refuses_a_moment_of_a_lost_table(company: Company) -> None:
    company.lose_table()
    moment = datetime(2026, 11, 20, 12, tzinfo=UTC)
    with pytest.raises(RestoreFailed, match=r"2026-11-20T12:00:00Z: the table .* is lost"):
        company.restore(RestoreRequest(moment))
    assert company.changes == 0


def test_refuses_a_moment_outside_of_the_recovery(company: Company) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(RestoreFailed, match=r"expected a moment from .* to .*, which the recovery"):
        company.restore(RestoreRequest(moment))
    assert company.changes == 0


def test_refuses_an_unknown_backup(company: Company) -> None:
    arn = f"{company.settings.names.table_arn}/backup/01-none"
    with pytest.raises(RestoreFailed, match="this backup does not exist; `aws dynamodb list-back"):
        company.restore(RestoreRequest(source=arn))
    assert company.changes == 0


def test_refuses_a_lost_table_without_backups(company: Company) -> None:
    company.aws.client("dynamodb").delete_table(TableName=company.name)
    with pytest.raises(RestoreFailed, match="is lost, and no backup of it exists in us-east-1"):
        company.restore(RestoreRequest())
    assert company.changes == 0


def test_names_temporary_tables_of_other_restores(company: Company) -> None:
    first, second = company.backup("monday"), company.backup("tuesday")
    other = temporary_table(company.name, first.rpartition("/")[2])
    company.aws.client("dynamodb").restore_table_from_backup(BackupArn=first, TargetTableName=other)
    company.restore(RestoreRequest(source=second))
    assert any(f"the temporary table {other} belongs to another" in line for line in company.lines)
