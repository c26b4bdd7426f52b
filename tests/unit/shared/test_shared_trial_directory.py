import json
import math
import os
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from detcloud import DetcloudError
from detcloud.agent.allocation.trial_reports import parse_line
from detcloud.shared.report_file import LINE_BYTES_MAX, ReportFile
from detcloud.shared.trial_directory import (
    CheckpointReference,
    Directives,
    DirectivesFile,
    Preemption,
    TrialDirectory,
)
from tests.unit.core.full_disk import files_of_at_most
from tests.unit.core.trial_files import direct, make_trial


def test_missing_fields_of_a_specification_have_defaults(tmp_path: Path) -> None:
    reference = {"uuid": "a", "trial_id": 4, "path": "3/4/1/a", "newer": True}
    spec = TrialDirectory(make_trial(tmp_path, latest_checkpoint=reference, later_field=1)).spec
    assert (spec.experiment_id, spec.trial_id, spec.scheduling_unit) == (3, 4, 100)
    assert spec.latest_checkpoint == CheckpointReference("a", 4, "3/4/1/a", 0, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trial_id": "4"}, "trial_id is '4', not int"),
        ({"trial_seed": True}, "trial_seed is True, not int"),
        ({"entrypoint": 5}, r"entrypoint is 5, not str \| list\[str\]"),
        ({"version": 4}, "version is 4, this harness reads versions 1, 2 and 3"),
        ({"checkpoint_policy": "some"}, "checkpoint_policy is 'some', not best, all or none"),
        ({"latest_checkpoint": []}, "latest_checkpoint must be an object"),
        ({"latest_checkpoint": {"uuid": "a"}}, "latest_checkpoint is not complete"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DetcloudError, match=message):
        TrialDirectory(make_trial(tmp_path, **fields))


def test_error_for_a_broken_specification_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(DetcloudError, match=r"spec\.json does not exist"):
        TrialDirectory(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "spec.json").write_text("{")
    with pytest.raises(DetcloudError, match=r"spec\.json is not JSON"):
        TrialDirectory(tmp_path)


def test_missing_directives_file_gives_defaults(tmp_path: Path) -> None:
    trial = make_trial(tmp_path)
    file = DirectivesFile(trial / "in" / "directives.json")
    assert file.read() == Directives()
    direct(trial, revision=2, length=10, preempt={"deadline_ms": 5, "reason": "spot"})
    assert file.read() == Directives(2, 10, preempt=Preemption(5, "spot"))


def test_lengths_are_batches_unless_the_directives_say_epochs(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, version=2)
    file = DirectivesFile(trial / "in" / "directives.json")
    direct(trial, revision=1, length=10)
    assert file.read().length_unit == "batches"
    direct(trial, revision=2, length=10, length_unit="epochs")
    assert file.read().length_unit == "epochs"
    direct(trial, revision=3, length=10, length_unit="days")
    with pytest.raises(DetcloudError, match="length_unit is 'days', not batches or epochs"):
        file.read()


def test_an_older_revision_is_ignored(tmp_path: Path) -> None:
    trial = make_trial(tmp_path)
    file = DirectivesFile(trial / "in" / "directives.json")
    direct(trial, revision=2, length=10)
    file.read()
    direct(trial, revision=1, length=5)
    assert file.read().length == 10


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    trial = make_trial(tmp_path)
    path = trial / "in" / "directives.json"
    file = DirectivesFile(path)
    direct(trial, revision=1, length=10)
    file.read()
    # The file has the same size and time, so that only a read would notice the other content.
    status = path.stat()
    path.write_text(path.read_text().replace("10", "20"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.read().length == 10
    os.utime(path)
    assert file.read().length == 20


def test_a_report_is_a_line_with_kind_and_time(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "out" / "report-0.jsonl")
    report.append("progress", value=0.5)
    report.append("completed", length=3, metric=1)
    report.close()
    first, second = (json.loads(line) for line in report.path.read_text().splitlines())
    assert first["time_ms"] > 1_700_000_000_000
    assert (first["kind"], first["value"]) == ("progress", 0.5)
    assert (second["kind"], second["length"], second["metric"]) == ("completed", 3, 1)


def test_numbers_that_json_lacks_are_strings(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "report-0.jsonl")
    report.append("metrics", metrics={"a": math.nan, "b": math.inf, "c": [-math.inf, 1.5]})
    report.close()
    metrics = json.loads(report.path.read_text())["metrics"]
    assert metrics == {"a": "NaN", "b": "Infinity", "c": ["-Infinity", 1.5]}


def test_unencodable_text_is_reported_with_question_marks(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "report-0.jsonl")
    report.append("exit", message="no file a\udcff", metrics={"\ud800é": 1})
    report.close()
    entry = json.loads(report.path.read_text())
    assert (entry["message"], entry["metrics"]) == ("no file a?", {"?é": 1})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"loss": object()}, "metrics.metrics.loss is an object"),
        ({1: 2}, "keys must be strings"),
        ({"text": "x" * LINE_BYTES_MAX}, "the limit is 262144"),
    ],
)
def test_unreportable_values_are_refused_without_a_write(
    tmp_path: Path, value: dict[Any, Any], message: str
) -> None:
    report = ReportFile(tmp_path / "report-0.jsonl")
    with pytest.raises(DetcloudError, match=message):
        report.append("metrics", metrics=value)
    report.close()
    assert report.path.read_bytes() == b""


@pytest.mark.parametrize("depth", [64, 65, 150, 200, 254, 260, 5000])
def test_too_deep_values_are_not_written(tmp_path: Path, depth: int) -> None:
    # The line itself is a level, so that a value may have 63 levels.
    value: Any = float("nan")
    for level in range(depth - 1):
        value = {"a": value} if level % 2 else (value,)
    report = ReportFile(tmp_path / "report-0.jsonl")
    if depth > 64:
        with pytest.raises(
            DetcloudError, match=r"^metrics\.loss.* nested more than 64 levels deep"
        ):
            report.append("metrics", loss=value)
        assert report.path.read_bytes() == b""
    else:
        report.append("metrics", loss=value)
        assert parse_line(report.path.read_bytes()[:-1], 1).warning == ""


def test_the_longest_line_has_exactly_256_kib(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "report-0.jsonl")
    report.append("x", text="")
    empty = report.path.stat().st_size
    # A line grows by a byte per character of the text.
    report.append("x", text="a" * (256 * 1024 - empty))
    with pytest.raises(DetcloudError, match="262145 bytes"):
        report.append("x", text="a" * (256 * 1024 - empty + 1))
    report.close()
    assert report.path.stat().st_size == empty + 256 * 1024


def test_an_exit_line_of_an_earlier_process_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "report-0.jsonl"
    earlier = ReportFile(path)
    earlier.append("exit", reason="idle")
    report = ReportFile(path)
    assert not report.has_exit()
    earlier.append("exit", reason="idle")
    assert report.has_exit()
    earlier.close()
    report.close()


@pytest.mark.parametrize(
    ("line", "exits"),
    [
        ('{"reason": "completed", "kind" : "exit"}', True),
        ('{"kind":"metrics","metrics":{"kind":"exit"}}', False),
        ('{"kind":"exit"', False),
    ],
)
def test_an_exit_line_of_any_writer_counts(tmp_path: Path, line: str, exits: bool) -> None:
    report = ReportFile(tmp_path / "report-0.jsonl")
    report.path.write_text(line + "\n")
    assert report.has_exit() is exits
    report.close()


def test_a_report_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "report-0.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="report-0"):
        ReportFile(tmp_path / "report-0.jsonl")
    assert not (tmp_path / "elsewhere").exists()


def test_a_line_cut_by_a_full_disk_is_terminated(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "report-0.jsonl")
    report.append("progress", value=0.5)
    size = report.path.stat().st_size
    other = ReportFile(report.path)
    with files_of_at_most(size + 5):
        with pytest.raises(DetcloudError, match=r"5 of the .* bytes of a 'exit' report"):
            report.append("exit", reason="completed")
        with pytest.raises(DetcloudError, match=r"could not be written to .*File too large; free"):
            report.append("exit", reason="completed")
    # A second process of the rank, such as the launcher, has opened the file earlier.
    other.append("progress", value=0.75)
    report.append("progress", value=1.0)
    first, half, *rest = report.path.read_text().splitlines()
    assert [json.loads(line)["value"] for line in (first, *rest)] == [0.5, 0.75, 1.0]
    assert half == '{"kin'
    report.close()
    other.close()


def test_two_threads_write_no_empty_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ReportFile(tmp_path / "report.jsonl")
    other = Thread(target=report.append, args=("second",))
    write = os.write

    def write_slowly(descriptor: int, line: bytes) -> int:
        # Another thread reports while this line is half in the file.
        monkeypatch.setattr(os, "write", write)
        half = write(descriptor, line[:10])
        other.start()
        other.join(timeout=0.2)
        return half + write(descriptor, line[10:])

    monkeypatch.setattr(os, "write", write_slowly)
    report.append("first")
    other.join()
    kinds = [json.loads(line)["kind"] for line in report.path.read_text().splitlines()]
    assert kinds == ["first", "second"]


def test_unknown_era_is_refused(tmp_path: Path) -> None:
    assert TrialDirectory(make_trial(tmp_path / "a")).spec.era == "length"
    assert TrialDirectory(make_trial(tmp_path / "b", era="steps")).spec.era == "steps"
    with pytest.raises(DetcloudError, match="era is 'epochs', not steps or length"):
        TrialDirectory(make_trial(tmp_path / "c", era="epochs"))
