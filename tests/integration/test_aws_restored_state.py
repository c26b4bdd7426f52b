"""The restore of a cluster's state on AWS's emulator, without running functions.

The emulator keeps no history, so that a moment of the table is a backup that was made then.
"""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from control_plane.actors.messages.pool import PoolConfigured
from control_plane.engine.engine import Engine
from control_plane.restoration.incarnation import read_incarnation
from control_plane.restoration.restart import SKIPPED_IDS, read_next_ids
from infra.aws.state_restore import temporary_table
from infra.aws.stores import stream_mappings
from infra.restoration import RestoreFailed, RestoreRequest
from tests.emulators.ministack import Ministack, ministack
from tests.emulators.table_exports import export_table
from tests.engine_timing import UNHURRIED
from tests.integration.aws_company import COUNTER, Company, ProcessEnd, change, data

pytestmark = pytest.mark.end_to_end


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
