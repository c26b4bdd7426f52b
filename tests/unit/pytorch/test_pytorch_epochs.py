"""Lengths and periods in epochs of the trial's data; an epoch has 4 batches."""

from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, pytorch
from tests.unit.core.trial_files import reports
from tests.unit.pytorch.line_trial import Cluster, LineTrial


def test_epochs_are_counted_by_the_data_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(
        tmp_path, monkeypatch, version=2, min_validation_epochs=2, min_checkpoint_epochs=1
    )
    cluster.direct(revision=1, length=3, length_units=3, length_unit="epochs", closed=True)
    cluster.run()
    # An epoch has 4 batches and the scheduling unit is 5; D3 names the length in epochs.
    assert cluster.workloads == "T4 C4 T8 V8 C8 T12 C12 V12 D3"
    shares = [line["value"] for line in reports(cluster.trial, "progress")]
    assert shares == [4 / 12, 8 / 12, 1.0]
    assert cluster.exit_reason == "completed"


def test_a_promoted_trial_in_epochs_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, version=2)
    epochs = {"length_unit": "epochs"}
    cluster.direct(revision=1, length=1, **epochs)

    def answer() -> None:
        cluster.direct(revision=2, length=2, answered=1, closed=True, **epochs)

    cluster.run(lambda trial: setattr(trial, "after_validation_batch", answer))
    assert cluster.workloads == "T4 C4 V4 D1 T8 C8 V8 D2"


def test_an_answered_epoch_is_not_validated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Cluster(tmp_path, monkeypatch, version=2)
    epochs = {"length_unit": "epochs"}
    first.direct(revision=1, length=1, **epochs)
    first.run(
        lambda trial: setattr(
            trial,
            "after_validation_batch",
            lambda: first.direct(revision=2, length=1, answered=1, **epochs),
        )
    )
    assert (first.workloads, first.exit_reason) == ("T4 C4 V4 D1", "idle")
    latest = first.latest_checkpoint()
    (first.trial / "out" / "report-0.jsonl").unlink()
    # The validation came after the checkpoint, and only `answered` records the validation.
    second = Cluster(tmp_path, monkeypatch, version=2, latest_checkpoint=latest)
    second.direct(revision=3, length=2, answered=1, closed=True, **epochs)
    second.run()
    assert second.workloads == "T8 C8 V8 D2"


class StreamTrial(LineTrial):
    """Trial with a training loader without a length."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.experimental.disable_dataset_reproducibility_checks()

    def build_training_data_loader(self) -> Any:
        return iter(super().build_training_data_loader())


@pytest.mark.parametrize("spec", [{}, {"min_validation_epochs": 1}], ids=["length", "period"])
def test_epochs_of_data_without_a_length_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, StreamTrial, version=2, **spec)
    unit = "batches" if spec else "epochs"
    cluster.direct(revision=1, length=2, length_unit=unit, closed=True)
    with pytest.raises(DetcloudError, match="has no length: set records_per_epoch"):
        cluster.run()
