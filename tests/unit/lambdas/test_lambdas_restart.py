"""The preparation of a restored state table in DynamoDB."""

import json
import uuid
from types import ModuleType

import pytest

from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.restoration.incarnation import read_incarnation
from control_plane.restoration.restart import SKIPPED_IDS, read_next_ids
from control_plane.state.table import Expect, Key, Put
from lambdas import dump, restart
from tests.emulators.ministack import REGION, Ministack


def make_table(aws: Ministack, next_id: int) -> str:
    name = f"table-{uuid.uuid4().hex}"
    aws.client("dynamodb").create_table(**table_definition(name))
    put = Put(Key("counters", "experiment"), 1, b"%d" % next_id, Expect.ABSENT)
    DynamoDbTable(aws.client("dynamodb"), name).commit((put,))
    return name


@pytest.mark.parametrize("is_newest_there", [True, False])
def test_restored_table_gets_an_incarnation_and_skips_ids(
    aws: Ministack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_newest_there: bool,
) -> None:
    _use(aws, monkeypatch)
    restored, newest = make_table(aws, 5), make_table(aws, 9)
    words = ["--newest", newest] if is_newest_there else []
    assert restart.main([restored, *words]) == 0
    report = json.loads(capsys.readouterr().out)
    table = DynamoDbTable(aws.client("dynamodb"), restored)
    expected = 9 if is_newest_there else 5 + SKIPPED_IDS["experiment"]
    assert read_next_ids(table)["experiment"] == report["next_ids"]["experiment"] == expected
    assert read_incarnation(table, "") == report["incarnation"]


def test_missing_table_is_named(
    aws: Ministack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _use(aws, monkeypatch)
    assert restart.main(["no-such-table"]) == 1
    assert "no-such-table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tool", "words"),
    [(restart, ["restored"]), (dump, ["experiment#1", "--table", "restored"])],
    ids=["restart", "dump"],
)
def test_missing_region_is_reported(
    tool: ModuleType,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    assert tool.main(words) == 1
    assert "set AWS_DEFAULT_REGION" in capsys.readouterr().err


def _use(aws: Ministack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set endpoint, region and credentials of the emulated account in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": aws.url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
