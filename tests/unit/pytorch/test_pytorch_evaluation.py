from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

from detcloud import DetcloudError, pytorch
from tests.unit.core.trial_files import reports
from tests.unit.pytorch.line_trial import Cluster, LineTrial, _points


class UnevenTrial(LineTrial):
    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(), batch_size=6)

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": 1.0} if batch[0][0] == 0 else {"loss": 1.0, "more": 2.0}


def test_validation_batches_must_have_identical_metric_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, UnevenTrial)
    cluster.direct(revision=1, length=1, closed=True)
    with pytest.raises(ValueError, match=r"the metrics \['loss', 'more'\] for a batch, and"):
        cluster.run()


class UnknownTrial(LineTrial):
    """Trial with a validation loader without a length and without a batch."""

    def build_validation_data_loader(self) -> Any:
        self.context.experimental.disable_dataset_reproducibility_checks()
        return filter(None, ())


def test_a_validation_without_a_batch_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, UnknownTrial, metric="none")
    cluster.direct(revision=1, length=1, closed=True)
    with pytest.raises(RuntimeError, match="the validation data loader has no batch"):
        cluster.run()


class UntrainedTrial(LineTrial):
    """Trial that fails if training begins."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor:
        raise AssertionError("training began")


def few_records() -> Any:
    points = TensorDataset(torch.ones(3, 1), torch.ones(3, 1))
    return TorchDataLoader(points, batch_size=4, drop_last=True)


@pytest.mark.parametrize("method", ["build_training_data_loader", "build_validation_data_loader"])
@pytest.mark.parametrize("build", [list, few_records], ids=["list", "drop_last"])
def test_an_empty_data_set_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, build: Callable[[], Any]
) -> None:
    def build_empty(trial: Any) -> Any:
        trial.context.experimental.disable_dataset_reproducibility_checks()
        return build()

    kind = type("EmptyTrial", (UntrainedTrial,), {method: build_empty})
    cluster = Cluster(tmp_path, monkeypatch, kind)
    cluster.direct(revision=1, length=1, closed=True)
    with pytest.raises(DetcloudError, match=f"{method} returned a data loader that has no batch"):
        cluster.run()


class ElsewhereTrial(LineTrial):
    """Trial that evaluates other data, so that the validation loader may be empty."""

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def build_validation_data_loader(self) -> Any:
        self.context.experimental.disable_dataset_reproducibility_checks()
        return []

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {"loss": 0.5}


def test_evaluate_full_dataset_allows_an_empty_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, ElsewhereTrial)
    cluster.direct(revision=1, length=1, closed=True)
    cluster.run()
    assert reports(cluster.trial, "completed")[0]["metric"] == 0.5
