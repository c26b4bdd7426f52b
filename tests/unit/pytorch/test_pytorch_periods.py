from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, pytorch
from detcloud.pytorch import Batch, Epoch
from detcloud.pytorch.periods import length_batches
from tests.unit.pytorch.line_trial import Cluster, LineTrial


def test_periods_may_be_lists_of_batches_and_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=9, closed=True)
    # An epoch has 12 / 3 = 4 batches.
    cluster.run(
        validation_period=Epoch([1, 5]),
        checkpoint_period=Batch((6, 2)),
        reporting_period=Batch({3}),
    )
    assert cluster.workloads == "T2 C2 T3 T4 V4 T6 C6 T9 C9 V9 D9"


def test_a_training_length_must_be_a_single_number() -> None:
    assert length_batches(Epoch(3), 4) == 12
    with pytest.raises(
        DetcloudError, match=r"Batch\(value=\[3\]\) is not a training length: expected one number"
    ):
        length_batches(Batch([3]), 4)


def test_periods_of_fit_end_at_multiples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=9, closed=True)
    # The policy saves at each validation: the checkpoint at 3 does not delay the checkpoint at 4.
    cluster.run(
        validation_period=Batch(3),
        checkpoint_period=Batch(4),
        reporting_period=Batch(100),
        checkpoint_policy="all",
    )
    assert cluster.workloads == "T3 V3 C3 T4 C4 T6 V6 C6 T8 C8 T9 C9 V9 D9"


def test_configured_periods_count_from_the_last_occurrence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(
        tmp_path,
        monkeypatch,
        min_validation_batches=3,
        min_checkpoint_batches=4,
        scheduling_unit=100,
        checkpoint_policy="all",
    )
    cluster.direct(revision=1, length=9, closed=True)
    cluster.run()
    assert cluster.workloads == "T3 V3 C3 T6 V6 C6 T9 C9 V9 D9"


@pytest.mark.parametrize("wrong", [3, Batch([3])])
def test_malformed_and_missing_max_length_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    with pytorch.init(checkpoint_dir=tmp_path) as context:
        trainer = pytorch.Trainer(LineTrial(context), context)
        with pytest.raises(TypeError, match="not a training length"):
            trainer.fit(max_length=wrong)
        with pytest.raises(ValueError, match="fit needs max_length"):
            trainer.fit()


def test_fit_refuses_test_mode_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=8, closed=True)
    with pytest.raises(ValueError, match="use it without a cluster"):
        cluster.run(test_mode=True)
