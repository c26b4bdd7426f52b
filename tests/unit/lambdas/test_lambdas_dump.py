"""The dump of stored rows from a file and from DynamoDB."""

import json
import uuid
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.engine.spilled_outbox import encode_spill
from control_plane.local.state_places import FilePlace
from control_plane.rows import actor_rows, pool_rows, trial_rows
from control_plane.rows.registry import ROW_TYPES
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put
from lambdas import dump
from lambdas.readable_rows import decode_body, mask_body
from tests.emulators.ministack import REGION, Ministack

ROWS = (
    Put(Key("trial#7", "M"), 3, b'{"a": 1}\n{}', Expect.ABSENT),
    Put(Key("trial#7", "M#1"), 1, b"\xff\xfe", Expect.ABSENT, due_ms=5_000),
    Put(Key("trial#7", "P#x"), 2, "é".encode(), Expect.ABSENT),
    Put(Key("trial#8", "M"), 1, b"{}", Expect.ABSENT),
)
DUMPED = [
    {"sort": "M", "type": "head", "revision": 3, "body": {"header": {"a": 1}, "state": {}}},
    {"sort": "M#1", "type": "mail", "revision": 1, "due_ms": 5_000, "body": "2 bytes"},
    {"sort": "P#x", "type": "part", "revision": 2, "body": "é"},
]


def test_dumps_a_partition_of_a_file(tmp_path: Path) -> None:
    with closing(SqliteTable(tmp_path / "state.db")) as table:
        table.commit(ROWS)
        assert dump.rows_at(FilePlace(tmp_path), "trial#7") == DUMPED
    assert dump.rows_at(FilePlace(tmp_path), "trial#9") == []


def test_dumps_a_partition_of_dynamodb(aws: Ministack, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"table-{uuid.uuid4().hex}"
    aws.client("dynamodb").create_table(**table_definition(name))
    DynamoDbTable(aws.client("dynamodb"), name).commit(ROWS)
    _use(aws, monkeypatch)
    assert dump.rows_in_cloud("aws", name, "trial#7") == DUMPED


def test_unreadable_table_is_a_single_line_on_stderr(
    aws: Ministack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _use(aws, monkeypatch)
    for words in (["--home", str(tmp_path)], ["--table", "no-such-table"]):
        assert dump.main(["trial#7", *words]) == 1
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert words[1] in captured.err


def test_main_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state.db"
    with closing(SqliteTable(file)) as table:
        table.commit(ROWS)
    assert dump.main(["trial#7", "--home", str(file.parent)]) == 0
    assert json.loads(capsys.readouterr().out) == DUMPED


def test_bodies_are_decoded_by_their_declarations() -> None:
    entry = b"\x00" + zlib.compress(b'{"v": 2, "now": 1}')
    assert decode_body(actor_rows.JOURNAL, entry) == {"v": 2, "now": 1}
    outbox = encode_spill([("trial#7", [("TrialDeleted", b"{}")])])
    assert decode_body(actor_rows.OUTBOX, outbox) == [["trial#7", [["TrialDeleted", {}]]]]
    assert decode_body(actor_rows.JOURNAL, b"\x00damaged") == "\0damaged"
    assert decode_body(pool_rows.POOL, b"") == ""
    assert decode_body(None, b"7") == 7


def test_secret_fields_are_masked_as_a_whole() -> None:
    for row_type in ROW_TYPES:
        body = {name: "canary" for name in row_type.secret_fields} | {"open": "seen"}
        masked = mask_body(row_type, body)
        assert "canary" not in str(masked), row_type.name
        assert masked["open"] == "seen"
    assert mask_body(trial_rows.UPLOAD_SESSION, {"session": ""}) == {"session": ""}


def test_secrets_in_decoded_journals_are_masked() -> None:
    config = "environment: {environment_variables: [PASSWORD=canary]}"
    text = json.dumps({"in": [{"messages": [["ExperimentSubmitted", {"config": config}]]}]})
    entry = decode_body(actor_rows.JOURNAL, b"\x00" + zlib.compress(text.encode()))
    assert "canary" not in json.dumps(mask_body(actor_rows.JOURNAL, entry))


def _use(aws: Ministack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set endpoint, region and credentials of the emulated account in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": aws.url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
