from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import pytorch
from detcloud.pytorch.metrics import array_metrics
from tests.unit.core.trial_files import reports
from tests.unit.pytorch.line_trial import Cluster, LineTrial


def test_metrics_changed_by_callbacks_are_reported_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, metric="best_of_two", checkpoint_policy="best")
    cluster.direct(revision=1, length=4, closed=True)

    class AddingCallback(pytorch.PyTorchCallback):
        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            assert not reports(cluster.trial, "metrics")[1:]
            metrics["best_of_two"] = torch.tensor([1.5])
            del metrics["loss"]

    cluster.run(lambda trial: trial.callbacks.update(adding=AddingCallback()))
    [validation] = [
        report for report in reports(cluster.trial, "metrics") if report["group"] == "validation"
    ]
    assert validation["metrics"]["best_of_two"] == 1.5
    assert "loss" not in validation["metrics"]
    [done] = reports(cluster.trial, "completed")
    assert done["metric"] == 1.5


def test_trial_methods_get_arguments_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []

    class TurnedTrial(LineTrial):
        def train_batch(  # type: ignore[override]
            self, batch_idx: int, epoch_idx: int, batch: Any
        ) -> torch.Tensor:
            seen.append(("train", epoch_idx, batch_idx))
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(  # type: ignore[override]
            self, *, batch_idx: int, batch: Any
        ) -> dict[str, Any]:
            seen.append(("evaluate", len(batch[0]), batch_idx))
            return super().evaluate_batch(batch)

    cluster = Cluster(tmp_path, monkeypatch, TurnedTrial)
    cluster.direct(revision=1, length=5, closed=True)
    cluster.run()
    # An epoch has four batches; a single validation batch has all twelve points.
    assert seen == [*(("train", n // 4, n) for n in range(5)), ("evaluate", 12, 0)]


def test_callbacks_get_batch_metrics_as_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str] = []

    class NotingCallback(pytorch.PyTorchCallback):
        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            kinds.extend(type(metrics["loss"]).__name__ for metrics in batch_metrics)

        def on_validation_epoch_end(self, outputs: Any) -> None:
            kinds.extend(type(metrics["loss"]).__name__ for metrics in outputs)

    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=1, closed=True)
    cluster.run(lambda trial: trial.callbacks.update(noting=NotingCallback()))
    assert kinds == ["ndarray", "ndarray"]
    halves = array_metrics({"half": torch.ones(2, dtype=torch.bfloat16), "name": "x", "n": 3})
    assert (halves["half"].tolist(), halves["name"], halves["n"]) == ([1, 1], "x", 3)


def test_average_metrics_of_a_workload_contain_batches_and_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    averages: list[dict[str, Any]] = []

    class NotingCallback(pytorch.PyTorchCallback):
        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            averages.append(avg_metrics)

    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=5, closed=True)
    cluster.run(lambda trial: trial.callbacks.update(noting=NotingCallback()))
    # Five batches contain a single whole epoch of four batches.
    assert [(item["batches"], item["epochs"]) for item in averages] == [(5, 1)]
    assert averages[0] == reports(cluster.trial, "metrics")[0]["metrics"]


def test_validation_hook_may_choose_the_mode_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[bool] = []

    class SamplingCallback(pytorch.PyTorchCallback):
        def __init__(self, trial: LineTrial) -> None:
            self.model = trial.model

        def on_validation_start(self) -> None:
            modes.append(self.model.training)
            self.model.train()

        def on_validation_epoch_end(self, outputs: Any) -> None:
            modes.append(self.model.training)

    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=1, closed=True)
    cluster.run(lambda trial: trial.callbacks.update(sampling=SamplingCallback(trial)))
    # The model is in evaluation mode before the hook, and keeps the hook's mode afterwards.
    assert modes == [False, True]
