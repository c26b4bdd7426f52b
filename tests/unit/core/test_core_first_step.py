"""The report of the first step of a run that replaces another run."""

import json
from pathlib import Path

import pytest

from detcloud import core
from detcloud.core.first_step import FirstStep
from detcloud.shared.trial_directory import CheckpointReference, TrialSpec
from tests.unit.core.trial_files import direct, enter, make_trial, reports

SPEC = TrialSpec(steps_completed=40, replaces_run=True)


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Reports(list[tuple[str, dict[str, object]]]):
    def __call__(self, kind: str, **fields: object) -> None:
        self.append((kind, fields))


def test_durations_of_restore_and_first_step() -> None:
    clock, lines = Clock(), Reports()
    first_step = FirstStep(SPEC, lines, clock)
    clock.seconds += 3
    with first_step.measure_restore():
        clock.seconds += 2
        # A download within the load counts once.
        with first_step.measure_restore():
            clock.seconds += 1
    clock.seconds += 0.25
    first_step.report(41)
    durations = {"restore": 3_000, "first_step": 250}
    assert lines == [("first_step", {"steps_completed": 41, "durations_ms": durations})]


def test_only_the_first_step_is_reported() -> None:
    lines = Reports()
    first_step = FirstStep(SPEC, lines)
    first_step.report(40)
    assert lines == []
    first_step.report(41)
    first_step.report(42)
    assert len(lines) == 1


@pytest.mark.parametrize("spec", [None, TrialSpec(steps_completed=40)])
def test_other_runs_report_nothing(spec: TrialSpec | None) -> None:
    lines = Reports()
    FirstStep(spec, lines).report(41)
    assert lines == []


def test_failed_restore_counts_too() -> None:
    clock, lines = Clock(), Reports()
    first_step = FirstStep(SPEC, lines, clock)

    def restore() -> None:
        with first_step.measure_restore():
            clock.seconds += 2
            raise OSError("the store is away")

    with pytest.raises(OSError, match="away"):
        restore()
    first_step.report(41)
    assert lines[0][1]["durations_ms"] == {"restore": 2_000, "first_step": 0}


def test_code_of_the_core_api_reports_its_first_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, steps_completed=40, replaces_run=True)
    direct(trial, revision=1, length=100, closed=True, answered=0)
    enter(trial, monkeypatch)
    with core.init() as context:
        context.train.report_metrics("validation", 40, {"loss": 1.0})
        context.train.report_metrics("gpu", 99, {"memory": 1.0})
        context.train.report_progress(0.5)
        assert reports(trial, "first_step") == []
        context.train.report_training_metrics(50, {"loss": 1.0})
        context.train.report_training_metrics(60, {"loss": 1.0})
    (line,) = reports(trial, "first_step")
    assert line["steps_completed"] == 50
    assert line["durations_ms"].keys() == {"restore", "first_step"}
    # The line comes before the metrics of the step.
    kinds = [each["kind"] for each in reports(trial) if each.get("steps_completed") == 50]
    assert kinds == ["first_step", "metrics"]


def test_restored_checkpoint_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = make_trial(tmp_path, epoch=1)
    direct(trial, revision=1, length=100, closed=True, answered=0)
    enter(trial, monkeypatch)
    saved = {"steps_completed": 40}
    with core.init() as context, context.checkpoint.store_path(saved) as (folder, uuid):
        (folder / "weights").write_bytes(b"w")
    (stored,) = reports(trial, "checkpoint")
    reference = {"uuid": uuid, "trial_id": 4, "path": stored["path"], "steps_completed": 40}
    spec = json.loads((trial / "in" / "spec.json").read_text())
    reference["manifest_sha256"] = stored["manifest_sha256"]
    spec |= {"latest_checkpoint": reference, "steps_completed": 40, "replaces_run": True}
    (trial / "in" / "spec.json").write_text(json.dumps(spec))
    with core.init() as context:
        assert isinstance(context.info.latest_checkpoint, CheckpointReference)
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            assert (folder / "weights").read_bytes() == b"w"
        context.train.report_training_metrics(41, {"loss": 1.0})
    (line,) = reports(trial, "first_step")
    assert line["durations_ms"]["restore"] >= 0
