from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.core.trial_files import reports
from tests.unit.pytorch.gang_training import (
    LENGTH,
    SPEC,
    VALIDATION_RECORDS,
    prepare,
    train,
)
from tests.unit.pytorch.module_runs import run_module

STOPPED_AFTER = 7


def metrics(root: Path) -> list[tuple[str, int, float]]:
    """Return group, batch and loss of each metrics report."""
    return [
        (line["group"], line["steps_completed"], line["metrics"]["loss"])
        for line in reports(root / "trial", "metrics")
    ]


def test_two_processes_train_like_a_single_process_and_stop_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = {"noisy": True}
    prepare(tmp_path / "plain")
    prepare(tmp_path / "unbroken", hparams=noisy)
    prepare(tmp_path / "stopped", hparams={**noisy, "notice_at": STOPPED_AFTER - 1})
    # These checkpoints are stored in the background.
    prepare(tmp_path / "saving", hparams=noisy, min_checkpoint_batches=3)
    prepare(tmp_path / "went_on", hparams=noisy, min_checkpoint_batches=3, epoch=2)
    # In the step era, the chief's training metrics are reported by default.
    prepare(tmp_path / "chief", era="steps")
    options = {
        "gradient_compression": True,
        "tensor_fusion_threshold": 1,
        "aggregation_frequency": 1,
        "mixed_precision": "O1",
        "average_training_metrics": False,
    }
    prepare(tmp_path / "compressed", config={"optimizations": options})
    prepare(tmp_path / "alone", threads=1, slots=[0])
    prepare(tmp_path / "processed")
    run_module("gang_training", tmp_path)
    monkeypatch.setenv("DETCLOUD_TRIAL_DIR", "")
    alone = train(tmp_path / "alone")
    first, second = (torch.load(tmp_path / f"states-{rank}.pth") for rank in (0, 1))

    # Batches of 8, or two times 4: equal losses, and a single report per workload.
    expected = metrics(tmp_path / "alone")
    assert [entry[:2] for entry in metrics(tmp_path / "plain")] == [
        ("training", 5),
        ("validation", 5),
        ("training", LENGTH),
        ("validation", LENGTH),
    ]
    losses = [loss for *_, loss in metrics(tmp_path / "plain")]
    assert losses == pytest.approx([loss for *_, loss in expected], rel=1e-5)
    for name, value in alone.items():
        torch.testing.assert_close(first["plain"][name], value, rtol=1e-4, atol=1e-6)
    check_states(tmp_path, first, second, alone)

    # 5 batches of 8 records, and the validation set: a process counts only its own records.
    assert [
        line["metrics"]["records"] for line in reports(tmp_path / "plain" / "trial", "metrics")
    ] == [
        40,
        VALIDATION_RECORDS,
        40,
        VALIDATION_RECORDS,
    ]
    own = {
        name: [loss for group, _, loss in metrics(tmp_path / name) if group == "training"]
        for name in ("chief", "compressed")
    }
    assert own["chief"] != pytest.approx(losses[::2], rel=1e-2)
    # Half precision rounds exchanged gradients to a thousandth.
    assert own["compressed"] == pytest.approx(own["chief"], rel=5e-3)
    assert len(list(tmp_path.glob("off/*/*/*/*/state_dict.pth"))) == 1
    check_processed(tmp_path / "processed")


def check_states(
    root: Path, first: dict[str, Any], second: dict[str, Any], alone: dict[str, Any]
) -> None:
    """Assert that the final weights, stops and checkpoints of both processes are as expected."""
    # Both ranks have equal weights; running averages differ between ranks.
    for name in (
        "plain",
        "unbroken",
        "saving",
        "went_on",
        "stopped",
        "resumed",
        "chief",
        "compressed",
        "off",
    ):
        same_weights(first[name], second[name])

    # The notice to rank 1 stopped both ranks; the resumed training equals the unbroken training.
    (stop, *_) = reports(root / "stopped" / "trial", "checkpoint")
    assert stop["steps_completed"] >= STOPPED_AFTER
    ends = [line["reason"] for line in reports(root / "stopped" / "trial", "exit")]
    assert ends == ["preempted", "completed"]
    for name, value in first["unbroken"].items():
        assert torch.equal(first["resumed"][name], value), name
        assert torch.equal(first["saving"][name], value), name
        assert torch.equal(first["went_on"][name], value), name
    assert metrics(root / "stopped") == metrics(root / "unbroken")
    saved = [
        report["steps_completed"] for report in reports(root / "saving" / "trial", "checkpoint")
    ]
    assert saved == [3, 6, 9, LENGTH]
    went_on = reports(root / "went_on" / "trial", "checkpoint")
    assert [item["steps_completed"] for item in went_on] == [6, 9, LENGTH]
    assert not list(root.glob("*/trial/out/report-1.jsonl"))
    assert SPEC["scheduling_unit"] == 5

    # Half precision has 11 bits: gradients are exchanged with an error of up to 1 in 2,000.
    for name, value in alone.items():
        assert not torch.equal(first["compressed"][name], first["plain"][name])
        torch.testing.assert_close(first["compressed"][name], value, rtol=2e-2, atol=1e-3)
    for states in (first, second):
        assert states["sharded"]["w"].tolist() == list(range(8))


def check_processed(root: Path) -> None:
    """Assert that two processes processed a data set of 10 records in batches of 2."""
    # Rank 0 has batches 0, 2 and 4; rank 1 has batches 1 and 3.
    (report,) = reports(root / "trial", "metrics")
    assert report["metrics"]["order"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    steps = [line["steps_completed"] for line in reports(root / "trial", "checkpoint")]
    assert steps == [2, 3]
    stored = root.glob("store/3/4/1/outputs/*/rank_*/*")
    assert {(path.parent.name, path.name): path.read_text() for path in stored} == {
        ("rank_0", "0"): "[0, 1]",
        ("rank_1", "0"): "[2, 3]",
        ("rank_0", "1"): "[4, 5]",
        ("rank_1", "1"): "[6, 7]",
        ("rank_0", "2"): "[8, 9]",
    }


def same_weights(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name in first:
        if "running" not in name:
            assert torch.equal(first[name], second[name]), name
