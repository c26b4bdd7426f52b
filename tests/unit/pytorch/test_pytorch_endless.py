from pathlib import Path

import pytest

from detcloud.pytorch import Batch
from detcloud.shared.trial_directory import ENDLESS
from tests.unit.core.trial_files import reports
from tests.unit.pytorch.line_trial import Cluster


def test_endless_training_validates_after_all_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, config={"searcher": {"time_metric": "epochs"}})
    cluster.direct(revision=1, length=ENDLESS)

    def stop(steps: int) -> None:
        if steps == 12:
            cluster.direct(revision=2, length=ENDLESS, closed=True, preempt={"deadline_ms": None})

    cluster.run(lambda trial: setattr(trial, "after_batch", stop))
    # The interrupted workload is completed and saved.
    assert cluster.workloads == "T5 V5 T10 V10 T15 C15"
    assert cluster.exit_reason == "preempted"
    validations = [
        line for line in reports(cluster.trial, "metrics") if line["group"] == "validation"
    ]
    # An epoch is 12 points in batches of 3.
    assert [line["metrics"]["epochs"] for line in validations] == [1, 2]


def test_max_length_of_fit_ends_endless_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=ENDLESS)
    cluster.run(max_length=Batch(7), validation_period=Batch(4))
    assert cluster.workloads == "T4 V4 T7 C7 V7 D7"
    assert cluster.exit_reason == "completed"


def test_an_overruled_max_length_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=7, closed=True)
    cluster.run(max_length=Batch(9))
    assert cluster.workloads == "T5 T7 C7 V7 D7"
    assert capsys.readouterr().out.count("9 batches, is not used: the search") == 1


@pytest.mark.parametrize(("length", "is_told"), [(Batch(7), False), (Batch(8), True)])
def test_max_length_other_than_max_time_is_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    length: Batch,
    is_told: bool,
) -> None:
    config = {"searcher": {"time_metric": "batches", "max_time": 7}}
    cluster = Cluster(tmp_path, monkeypatch, config=config)
    cluster.direct(revision=1, length=ENDLESS)
    cluster.run(max_length=length)
    assert ("is not the search's max_time, 7 batches" in capsys.readouterr().out) is is_told
