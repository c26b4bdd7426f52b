from pathlib import Path

import pytest

from detcloud import DetcloudError
from detcloud.pytorch import Batch, Epoch
from detcloud.pytorch.periods import length_batches
from tests.unit.pytorch.line_trial import Cluster


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


def test_a_length_is_one_number() -> None:
    assert length_batches(Epoch(3), 4) == 12
    with pytest.raises(
        DetcloudError, match=r"Batch\(value=\[3\]\) is not a training length: expected one number"
    ):
        length_batches(Batch([3]), 4)
