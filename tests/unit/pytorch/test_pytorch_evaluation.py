from pathlib import Path
from typing import Any

import pytest

from detcloud import pytorch
from tests.unit.pytorch.line_trial import Cluster, LineTrial, _points


class UnevenTrial(LineTrial):
    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(), batch_size=6)

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": 1.0} if batch[0][0] == 0 else {"loss": 1.0, "more": 2.0}


def test_each_batch_of_a_validation_has_the_same_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.pytorch.line_trial.LineTrial", UnevenTrial)
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=1, closed=True)
    with pytest.raises(ValueError, match=r"the metrics \['loss', 'more'\] for a batch, and"):
        cluster.run()


class EmptyTrial(LineTrial):
    def build_validation_data_loader(self) -> Any:
        self.context.experimental.disable_dataset_reproducibility_checks()
        return []


def test_a_validation_without_a_batch_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.pytorch.line_trial.LineTrial", EmptyTrial)
    cluster = Cluster(tmp_path, monkeypatch, metric="none")
    cluster.direct(revision=1, length=1, closed=True)
    with pytest.raises(RuntimeError, match="the validation data loader has no batch"):
        cluster.run()
