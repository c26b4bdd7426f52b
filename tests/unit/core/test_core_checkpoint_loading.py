"""Failures to load a checkpoint: errors that count as a failure, and reports."""

from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core import CheckpointReference
from detcloud.core.distributed_context import DistributedContext
from detcloud.shared.errors import InvalidHP
from detcloud.shared.trial_directory import TrialSpec
from tests.unit.core.test_core_checkpoint_damage import Run
from tests.unit.core.trial_files import enter, make_trial, reports


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def load_and_raise(run: Run, error: BaseException, **options: Any) -> None:
    """Restore the checkpoint that the trial's second run begins from, and raise in the block."""
    latest = options.pop("latest", run.reference)
    spec = TrialSpec(experiment_id=3, trial_id=4, epoch=2, latest_checkpoint=latest)
    context = run.context(spec, **options)
    with pytest.raises(type(error)), context.restore_path(run.reference):
        raise error


def test_an_exception_in_the_restore_block_is_a_load_failure(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    load_and_raise(run, KeyError("layers.9.weight"))
    (line,) = run.reports
    assert (line["kind"], line["uuid"]) == ("checkpoint_load_failure", run.reference.uuid)
    assert line["message"] == "KeyError: 'layers.9.weight'"
    assert "cannot be loaded: KeyError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), KeyboardInterrupt(), DetcloudError("another process is gone"), InvalidHP("x")],
    ids=lambda error: type(error).__name__,
)
def test_exits_and_detcloud_errors_in_the_block_are_no_load_failure(
    run: Run, error: BaseException
) -> None:
    load_and_raise(run, error)
    assert run.reports == []


def test_only_the_chief_on_a_cluster_reports_load_failures(
    run: Run,
) -> None:
    other = CheckpointReference("00000000-0000-4000-8000-000000000001", 4, "3/4/1/x")
    load_and_raise(run, ValueError(), latest=other)
    load_and_raise(run, ValueError(), on_cluster=False)
    load_and_raise(run, ValueError(), distributed=DistributedContext(rank=1, size=2))
    assert run.reports == []


def test_a_failure_after_the_block_is_no_load_failure(run: Run) -> None:
    spec = TrialSpec(experiment_id=3, trial_id=4, epoch=2, latest_checkpoint=run.reference)
    context = run.context(spec)
    with context.restore_path(run.reference):
        pass
    context.loading.note_error(ValueError("a batch"))
    assert run.reports == []


def test_load_failure_is_reported_once_before_the_exit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = {
        name: getattr(run.reference, name)
        for name in ("uuid", "trial_id", "path", "steps_completed", "manifest_sha256")
    }
    trial = make_trial(run.root, epoch=2, latest_checkpoint=reference, steps_completed=7)
    enter(trial, monkeypatch)

    def load() -> None:
        with core.init() as context:
            # Frameworks that load the checkpoint within their own calls begin like this.
            context.checkpoint.loading.begin()
            with context.checkpoint.restore_path(run.reference):
                raise RuntimeError("size mismatch")

    with pytest.raises(RuntimeError, match="size mismatch"):
        load()
    failure, end = reports(trial)
    assert (failure["kind"], failure["uuid"]) == ("checkpoint_load_failure", run.reference.uuid)
    assert (end["kind"], end["reason"]) == ("exit", "errored")
