"""Lines of the agent's systemd journal are shipped to CloudWatch Logs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent import journal
from detcloud.agent.aws.journal import LogStream
from detcloud.agent.journal import (
    BATCH_BYTES_MAX,
    EVENTS_MAX,
    LINE_BYTES_MAX,
    JournalLine,
    LogRefused,
    first_batch,
    parse_line,
    ship,
)
from tests.emulators.ministack import Ministack


def entry(**fields: Any) -> str:
    # The format of `journalctl --output=json`: times are microseconds, as text.
    line = {"MESSAGE": "hello", "__REALTIME_TIMESTAMP": "1800000000123456", "__CURSOR": "s=1"}
    return json.dumps({**line, **fields})


def test_journal_line_has_time_and_cursor() -> None:
    assert parse_line(entry()) == JournalLine("hello", 1_800_000_000_123, "s=1")
    long = parse_line(entry(MESSAGE="x" * (LINE_BYTES_MAX + 1)))
    assert long is not None
    assert len(long.text) == LINE_BYTES_MAX


@pytest.mark.parametrize("text", ["", "{", "[]", entry(MESSAGE=[104, 105]), entry(MESSAGE=" ")])
def test_malformed_journal_entries_are_skipped(text: str) -> None:
    assert parse_line(text) is None


def test_batches_respect_the_limits_of_a_call() -> None:
    small = [JournalLine("x", 1, "c")] * (EVENTS_MAX + 1)
    assert len(first_batch(small)) == EVENTS_MAX
    # 16384 + 26 bytes each: 54 lines are 886,140 bytes, and 55 lines are too many.
    large = [JournalLine("x" * LINE_BYTES_MAX, 1, "c")] * 60
    assert len(first_batch(large)) == BATCH_BYTES_MAX // (LINE_BYTES_MAX + 26) == 54


def test_refused_lines_are_resent_before_the_cursor_is_stored(tmp_path: Path) -> None:
    cursor, seen, slept = tmp_path / "cursor", list[list[str]](), list[float]()
    failures: list[Exception] = [LogRefused("ThrottlingException"), OSError("away")]

    def write(lines: Sequence[JournalLine]) -> None:
        if failures:
            assert not cursor.exists()
            raise failures.pop()
        seen.append([line.text for line in lines])

    lines = [JournalLine("a", 1, "s=1"), JournalLine("b", 2, "s=2")]
    ship([list(lines)], write, cursor, slept.append)
    assert seen == [["a", "b"]]
    assert slept == [journal.RETRY_SECONDS] * 2
    assert cursor.read_text() == "s=2"


class Metadata:
    """Metadata of an EC2 instance with a role and keys."""

    def get(self, path: str) -> str | None:
        keys = {"AccessKeyId": "test", "SecretAccessKey": "test", "Token": "session"}
        role = "latest/meta-data/iam/security-credentials/"
        return {
            "latest/meta-data/instance-id": "i-1",
            "latest/meta-data/placement/region": "us-east-1",
            role: "instance",
            f"{role}instance": json.dumps(keys),
        }.get(path)


def test_cloudwatch_receives_lines_sorted_by_time(
    aws: Ministack, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = aws.client("logs")
    logs.create_log_group(logGroupName="/company/agents")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LOGS", aws.url)
    now_ms = 1_800_000_000_000
    stream = LogStream("/company/agents", "", Metadata())
    # The first call creates the stream; the second call uses the existing stream.
    stream.write([JournalLine("second", now_ms + 1, "b"), JournalLine("first", now_ms, "a")])
    stream.write([JournalLine("third", now_ms + 2, "c")])
    log = logs.get_log_events(
        logGroupName="/company/agents", logStreamName="i-1", startFromHead=True
    )
    assert [event["message"] for event in log["events"]] == ["first", "second", "third"]


def test_missing_log_group_is_named_in_the_error(
    aws: Ministack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_LOGS", aws.url)
    with pytest.raises(LogRefused, match="ResourceNotFoundException"):
        LogStream("/nobodys", "s", Metadata()).write([JournalLine("x", 1, "a")])
