"""The Trainer performs the schedule's workloads in both eras and after failures."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import DetcloudError, pytorch
from tests.unit.core.full_disk import files_of_at_most
from tests.unit.core.trial_files import reports
from tests.unit.pytorch.line_trial import Cluster, LineTrial


def steps(root: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> Cluster:
    """Return a cluster of the step era with steps of 5 batches."""
    return Cluster(root, monkeypatch, era="steps", **spec)


def forget(cluster: Cluster) -> dict[str, Any]:
    """Delete the trial's reports, and return the latest checkpoint."""
    latest = cluster.latest_checkpoint()
    (cluster.trial / "out" / "report-0.jsonl").unlink()
    return latest


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "T5 T10 T15 V15 C15 D15"),
        (
            {"min_validation_batches": 5, "min_checkpoint_batches": 10},
            "T5 V5 T10 V10 C10 T15 V15 C15 D15",
        ),
        (
            {"min_validation_batches": 10, "checkpoint_policy": "all"},
            "T5 T10 V10 C10 T15 V15 C15 D15",
        ),
        ({"test_mode": True}, "T1 V1 C1 D15"),
    ],
)
def test_step_era_trains_validates_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], expected: str
) -> None:
    cluster = steps(tmp_path, monkeypatch, **spec)
    cluster.direct(revision=1, length=15, closed=True)
    cluster.run()
    assert cluster.workloads == expected
    assert cluster.exit_reason == "completed"


def test_a_waiting_trial_has_saved_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = steps(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=5)

    def answer() -> None:
        cluster.direct(revision=2, length=5, answered=5)

    cluster.run(lambda trial: setattr(trial, "after_validation_batch", answer))
    assert cluster.workloads == "T5 V5 C5 D5"
    assert cluster.exit_reason == "idle"


@pytest.mark.parametrize(
    ("pause_at", "first", "second"),
    [
        # Paused within the second step: the step is completed and saved, and validated later.
        (8, "T5 V5 T10 C10", "V10 T15 V15 C15 D15"),
        (13, "T5 V5 T10 V10 T15 C15", "V15 D15"),
    ],
)
def test_a_paused_step_is_completed_and_validated_after_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_at: int, first: str, second: str
) -> None:
    wishes = {"length": 15, "closed": True}
    cluster = steps(tmp_path, monkeypatch, min_validation_batches=5)
    cluster.direct(revision=1, **wishes)

    def pause(batches: int) -> None:
        if batches == pause_at:
            cluster.direct(revision=2, preempt={"deadline_ms": None}, **wishes)

    cluster.run(lambda trial: setattr(trial, "after_batch", pause))
    assert cluster.workloads == first
    later = steps(
        tmp_path, monkeypatch, min_validation_batches=5, epoch=2, latest_checkpoint=forget(cluster)
    )
    later.direct(revision=3, **wishes)
    later.run()
    assert later.workloads == second


def test_final_validation_requires_the_searchers_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = steps(
        tmp_path, monkeypatch, metric="accuracy", min_validation_batches=5, checkpoint_policy="best"
    )
    cluster.direct(revision=1, length=10, closed=True)
    with pytest.raises(DetcloudError, match="lacks the searcher's metric 'accuracy'"):
        cluster.run()
    assert cluster.workloads == "T5 V5 T10 V10 C10 D10"
    assert cluster.exit_reason == "errored"
    (completed,) = reports(cluster.trial, "completed")
    assert completed["metric"] is None
    assert "at batch 10 lacks" in completed["message"]


@pytest.mark.parametrize("era", ["steps", "length"])
def test_a_validation_known_to_the_cluster_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    spec = {"era": era, "min_validation_batches": 5}
    first = Cluster(tmp_path, monkeypatch, **spec)
    first.direct(revision=1, length=10, closed=True)

    def stop(trial: LineTrial) -> None:
        trial.after_batch = lambda done: trial.context.set_stop_requested(done == 5)

    first.run(stop)
    assert first.workloads == "T5 C5"
    latest = forget(first)
    # The second run validated and was stopped; the checkpoint of batch 5 existed already.
    second = Cluster(tmp_path, monkeypatch, **spec, epoch=2, latest_checkpoint=latest)

    def interrupt(trial: LineTrial) -> None:
        trial.after_validation_batch = lambda: trial.context.set_stop_requested(True)

    second.run(interrupt)
    assert second.workloads == "V5"
    third = Cluster(
        tmp_path, monkeypatch, **spec, epoch=3, latest_checkpoint=latest, validated_steps=5
    )
    (third.trial / "out" / "report-0.jsonl").unlink()
    third.run()
    end = "V10 C10 D10" if era == "steps" else "C10 V10 D10"
    assert third.workloads == f"T10 {end}"


@pytest.mark.parametrize(("known", "expected"), [(None, "V0 T2 C2 V2 D2"), (0, "T2 C2 V2 D2")])
def test_an_initial_validation_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int | None, expected: str
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, perform_initial_validation=True, validated_steps=known)
    cluster.direct(revision=1, length=2, closed=True)
    cluster.run()
    assert cluster.workloads == expected


def test_a_repeated_best_validation_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The experiment's best metric 3 is this trial's at batch 5, without a checkpoint so far.
    cluster = steps(
        tmp_path,
        monkeypatch,
        min_validation_batches=5,
        checkpoint_policy="best",
        validated_steps=5,
    )
    cluster.direct(revision=1, length=15, closed=True, best_validation=3.0)
    cluster.run(lambda trial: trial.losses.extend([3.0, 3.0, 4.0]))
    # The validation at batch 10 is a tie with batch 5, not a repetition.
    assert cluster.workloads == "T5 V5 C5 T10 V10 T15 V15 C15 D15"


@pytest.mark.parametrize("place", ["writing", "storing"])
def test_a_failed_save_ends_the_run_and_the_next_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    spec = {"min_checkpoint_batches": 5}
    cluster = Cluster(tmp_path, monkeypatch, **spec)
    cluster.direct(revision=1, length=15, closed=True)
    limits = ExitStack()

    class FullDisk(pytorch.PyTorchCallback):
        def __init__(self, trial: LineTrial) -> None:
            self.trial = trial

        def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
            if self.trial.context.current_train_batch() == 9:
                checkpoint["filler"] = "x" * 100_000
            self.fill_disk("writing")

        def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
            self.fill_disk("storing")

        def fill_disk(self, reached: str) -> None:
            if (reached, self.trial.context.current_train_batch()) == (place, 9):
                limits.enter_context(files_of_at_most(60_000))

    message = "was not stored" if place == "storing" else "state_dict.pth could not be written to"
    with pytest.raises(DetcloudError, match=message), limits:
        cluster.run(lambda trial: trial.callbacks.update(full=FullDisk(trial)))
    assert cluster.workloads == "T5 C5 T10"
    assert cluster.exit_reason == "errored"
    assert message in str(reports(cluster.trial)[-1]["message"])
    stored = {path.parent.name for path in (tmp_path / "store" / "3").rglob("*") if path.is_file()}
    assert stored == {cluster.latest_checkpoint()["uuid"]}
    later = Cluster(tmp_path, monkeypatch, **spec, epoch=2, latest_checkpoint=forget(cluster))
    later.run()
    assert later.workloads == "T10 C10 T15 C15 V15 D15"


def stop_at_first_batch(trial: LineTrial) -> None:
    trial.after_batch = lambda _steps: signal.raise_signal(signal.SIGTERM)


def test_a_checkpoint_of_a_different_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=10, closed=True)
    cluster.run(stop_at_first_batch)
    later = Cluster(tmp_path, monkeypatch, epoch=2, latest_checkpoint=forget(cluster))

    def replace_model(trial: LineTrial) -> None:
        trial.context.optimization.models[0] = torch.nn.Linear(2, 1)

    with pytest.raises(DetcloudError, match=r"does not fit the trial's Linear: .*size mismatch"):
        later.run(replace_model)


def test_a_tampered_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=10, closed=True)
    cluster.run(stop_at_first_batch)
    latest = forget(cluster)
    path = tmp_path / "store" / latest["path"] / "state_dict.pth"
    path.write_bytes(path.read_bytes()[:-1])
    later = Cluster(tmp_path, monkeypatch, epoch=2, latest_checkpoint=latest)
    with pytest.raises(
        DetcloudError, match=r"state_dict\.pth is not the file that was stored: \d+ bytes"
    ):
        later.run()
    assert later.exit_reason == "errored"
